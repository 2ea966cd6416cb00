#!/usr/bin/env bash
# Proves the two commands of the README on a machine that has nothing: a minbase chroot of Debian 12 into which only
# the package sources, the CA certificates and the pip configuration of this host go, and a clone of HEAD.
#   - a plain user without packages and sudo is told the one apt line
#   - root: quickstart cold and warm, a killed worker comes back, stop; then the tests
#   - a plain user with the packages present, the same
# There is no XDG_RUNTIME_DIR anywhere. Needs root, mmdebstrap (install-deps.sh --tools) and git.
#
# usage: fresh-machine.sh [--keep] [--tests PART]
#   --keep   leaves the chroot in place and says where
#   --tests  the part of test.sh that is run (default: all; "none" leaves it out)
set -euo pipefail
. "$(dirname "$0")/places.sh"

keep= part=all
while [ $# -gt 0 ]; do
    case $1 in
    --keep) keep=yes ;;
    --tests) part=${2:?--tests needs a part}; shift ;;
    *) fail $EXIT_USAGE "unknown argument $1; there are --keep and --tests PART." ;;
    esac
    shift
done
[ "$(id -u)" -eq 0 ] || fail $EXIT_PERMISSION "only root may make a chroot: run this as root."
command -v mmdebstrap > /dev/null ||
    fail $EXIT_SYSTEM "mmdebstrap is missing: deploy/install-deps.sh --tools installs it."
# Mounts and processes of the chroot live in namespaces of their own and are gone when this ends.
[ -n "${TANDEM_FRESH_NAMESPACE:-}" ] ||
    TANDEM_FRESH_NAMESPACE=yes exec unshare --mount --pid --fork --kill-child -- "$0" \
        ${keep:+--keep} --tests "$part"

root=$(mktemp -d "${TMPDIR:-/var/tmp}/tandem-fresh.XXXXXX")
clean() {
    umount -R "$root/proc" "$root/dev/shm" "$root/dev/pts" 2> /dev/null || true
    if [ -n "$keep" ]; then echo "kept: $root"; else rm -rf --one-file-system "$root"; fi
}
trap clean EXIT

copy_in() { # PATH: a file or folder of the host, if there is one
    [ -e "$1" ] || return 0
    mkdir -p "$root$(dirname "$1")"
    cp -rL "$1" "$root$(dirname "$1")/"
}

make_chroot() {
    local sources=() file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
        [ ! -s "$file" ] || sources+=("$file")
    done
    mmdebstrap --quiet --variant=minbase bookworm "$root" "${sources[@]}"
    for file in /etc/apt/apt.conf.d/*proxy* /usr/local/share/ca-certificates \
        /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        copy_in "$file"
    done
    # The user's configuration becomes the machine's, so that root and the plain user share it.
    [ ! -f "$home/.config/pip/pip.conf" ] || cat "$home/.config/pip/pip.conf" >> "$root/etc/pip.conf"
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    mount -t devpts devpts "$root/dev/pts"
    chroot "$root" useradd --create-home newcomer
    git clone --quiet --no-hardlinks --depth 1 "file://$tree" "$root/root/tandem"
    cp -r "$root/root/tandem" "$root/home/newcomer/tandem"
    chroot "$root" chown -R newcomer:newcomer /home/newcomer/tandem
}

# inside USER COMMAND...: runs in the user's clone with nothing in the environment but where pip looks.
inside() {
    local user=$1 home_of=/root pip=()
    shift
    [ "$user" = root ] || home_of=/home/$user
    mapfile -t pip < <(env | grep -E '^PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT|FIND_LINKS)=' || true)
    chroot --userspec="$user:$user" "$root" env -i HOME="$home_of" TERM=dumb LC_ALL=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "${pip[@]}" \
        bash -c 'cd ~/tandem && exec "$@"' bash "$@"
}

expect() { # WHAT CONDITION...: a line for each thing shown
    local what=$1
    shift
    if "$@"; then echo "ok: $what"; else echo "FAILED: $what"; exit 1; fi
}

quickstart() { # USER SECONDS_MAX WHAT
    local began=$SECONDS took answer=$root/tmp/answer
    inside "$1" deploy/quickstart.sh 2>&1 | tee "$answer"
    took=$((SECONDS - began))
    expect "$1, $3: the answer" grep -q 'The capital of France is Paris\.' "$answer"
    expect "$1, $3: $took s, at most $2 s" [ $took -le "$2" ]
}

service_pid() { # USER SERVICE
    inside "$1" deploy/quickstart.sh status | sed -n "s/^$2: running, pid \([0-9]*\),.*/\1/p"
}

newcomer_without_packages() {
    local code=0
    inside newcomer deploy/quickstart.sh > "$root/tmp/answer" 2>&1 || code=$?
    cat "$root/tmp/answer"
    expect "newcomer without packages: exit 77" [ $code -eq 77 ]
    expect "newcomer without packages: the apt line" grep -q '^apt-get install ' "$root/tmp/answer"
}

both_commands() { # USER
    local user=$1 before after
    quickstart "$user" 360 cold
    quickstart "$user" 3 warm
    before=$(service_pid "$user" worker)
    kill -9 "$before"
    quickstart "$user" 30 "after kill -9 of the worker"
    after=$(service_pid "$user" worker)
    expect "$user: another worker serves ($before, then $after)" [ "$before" != "$after" ]
    inside "$user" deploy/quickstart.sh stop
    expect "$user: nothing runs after stop" \
        [ "$(grep -lsE 'tandem-(coordinator|worker)' /proc/[0-9]*/comm "$root"/proc/[0-9]*/comm | wc -l)" -eq 0 ]
    [ "$part" = none ] || inside "$user" deploy/test.sh "$part"
}

mount -t proc proc /proc # of this pid namespace: only our own processes are seen
make_chroot
newcomer_without_packages
both_commands root
inside root deploy/install-deps.sh --tests
both_commands newcomer
echo "both commands work on a fresh machine, as root and as a plain user"
