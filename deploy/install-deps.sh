#!/usr/bin/env bash
# Installs the Debian packages that Tandem is built with.
#   --tests  also what the tests need
#   --tools  also what a developer may ask for: libFuzzer, clang-tidy, a fresh chroot
# Works as root or through sudo. Without either: prints the one line for an administrator, exit 77.
# Nothing missing: no call of apt.
set -euo pipefail
. "$(dirname "$0")/places.sh"

packages=(gcc libc6-dev cmake ninja-build pkg-config libnng-dev libmsgpack-dev libxxhash-dev libinih-dev
    libjansson-dev python3 python3-pip ca-certificates)
for argument in "$@"; do
    case $argument in
    --tests) packages+=(libcmocka-dev python3-msgpack clang-format-14) ;;
    --tools) packages+=(clang libclang-rt-14-dev clang-tidy mmdebstrap) ;;
    *) fail $EXIT_USAGE "unknown argument $argument; there are --tests and --tools." ;;
    esac
done

command -v dpkg-query > /dev/null && command -v apt-get > /dev/null ||
    fail $EXIT_SYSTEM "this is no Debian or Ubuntu; install what the following packages hold: ${packages[*]}"

# dpkg-query fails when it knows none of them; the lines that it prints are enough.
installed=" $(dpkg-query -W -f='${db:Status-Status} ${Package} \n' "${packages[@]}" 2> /dev/null |
    awk '$1 == "installed" { printf "%s ", $2 }' || true) "
missing=()
for package in "${packages[@]}"; do
    [[ $installed == *" $package "* ]] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
    as_root=()
elif command -v sudo > /dev/null && { [ -t 0 ] || sudo -n true 2> /dev/null; }; then
    as_root=(sudo)
else
    echo "apt-get install -y --no-install-recommends ${missing[*]}"
    fail $EXIT_PERMISSION "packages are missing and this is neither root nor sudo: have the line above run as root, then try again."
fi

echo "installing ${#missing[@]} packages: ${missing[*]}"
log=$(mktemp "${TMPDIR:-/tmp}/tandem-apt.XXXXXX") ||
    fail $EXIT_IO "cannot write to ${TMPDIR:-/tmp}: the disk is full or read-only; free some space and run this again."
trap 'rm -f "$log"' EXIT
trap 'fail $EXIT_INTERRUPTED "interrupted; run it again to go on."' INT TERM
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=120)
if ! "${apt[@]}" update > "$log" 2>&1 ||
    ! "${apt[@]}" install --no-install-recommends "${missing[@]}" >> "$log" 2>&1; then
    grep -E '^(E|W|Err)' "$log" | tail -n 5 >&2 || true
    if grep -q -e 'No space left' -e "don't have enough free space" "$log"; then
        fail $EXIT_IO "the disk is full: free 1 GiB and run this again."
    fi
    fail $EXIT_UNAVAILABLE "apt could not install the packages: check the network and the package sources (apt-get update), then run this again."
fi
