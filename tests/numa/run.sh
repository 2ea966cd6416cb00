#!/usr/bin/env bash
# Runs the CPU backend on machines with several memory nodes, which qemu emulates: where weights and stacks lie, that the
# bits are equal, what becomes of it where processors or memory are missing or forbidden. Software emulation: it says
# nothing about speed.
#
# usage: tests/numa/run.sh [MACHINE...]
#   MACHINE  even, alternate, bare or wide; all by default
# Environment: TANDEM_NUMA_BUILD (build/release) where bin/numa_placement lies; TANDEM_NUMA_KERNEL the vmlinuz to boot,
#   by default the newest one in /boot; TANDEM_NUMA_SECONDS (600) after which a machine is ended. Installs nothing; exit 69 and a line that says what is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."

build=${TANDEM_NUMA_BUILD:-build/release}
program=$build/bin/numa_placement
tests=(kernels_backend_test kernels_cpu_matrix_test kernels_cpu_memory_test kernels_cpu_processors_test)
kernel=${TANDEM_NUMA_KERNEL:-$(find /boot -maxdepth 1 -name 'vmlinuz-*' 2> /dev/null | sort -V | tail -n 1)}
seconds=${TANDEM_NUMA_SECONDS:-600}
[ $# -gt 0 ] || set -- even alternate bare wide

missing() {
    echo "tests/numa/run.sh: $1" >&2
    exit 69
}
packages=()
command -v qemu-system-x86_64 > /dev/null || packages+=(qemu-system-x86)
command -v cpio > /dev/null || packages+=(cpio)
[ -x /bin/busybox ] && ! ldd /bin/busybox > /dev/null 2>&1 || packages+=(busybox-static)
[ ${#packages[@]} -eq 0 ] || missing "install these packages: ${packages[*]}"
[ -r "${kernel:-/nowhere}" ] || missing "no kernel: name one with TANDEM_NUMA_KERNEL; this gets one without installing it:
  apt-get download \$(apt-cache depends --important linux-image-cloud-amd64 | sed -n 's/.*Depends: //p') &&
  dpkg-deb -x linux-image-*.deb kernel"
for name in "$program" "${tests[@]/#/$build/bin/}"; do
    [ -x "$name" ] || missing "no $name: build with -DTANDEM_TESTS=ON"
done

work=$(mktemp -d "${TMPDIR:-/tmp}/tandem-numa.XXXXXX")
trap 'rm -rf "$work"' EXIT

# The guest: busybox, the programs and the libraries that they name, and guest.sh as its first process.
make_guest() {
    local root=$work/root library programs=("$program" "${tests[@]/#/$build/bin/}")
    mkdir -p "$root"/{bin,proc,sys,tmp}
    cp /bin/busybox "$root/bin/busybox"
    cp "${programs[@]}" "$root/bin/"
    cp tests/numa/guest.sh "$root/init"
    chmod 755 "$root/init"
    for library in $(ldd "${programs[@]}" | grep -o '/lib[^ ]*' | sort -u); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
    (cd "$root" && find . | cpio --quiet -o -H newc) > "$work/guest.cpio"
}

# A memory of so many MiB for each node that has one.
memory() {
    local node
    for node in "${@:2}"; do
        machine+=(-object "memory-backend-ram,id=m$node,size=$1M")
    done
}

# Nodes, in qemu's words.
describe() {
    case $1 in
    even) # two nodes alike
        machine=(-smp 4 -m 1024)
        memory 512 0 1
        machine+=(-numa node,cpus=0-1,memdev=m0 -numa node,cpus=2-3,memdev=m1)
        ;;
    alternate) # neighbouring processors belong to different nodes
        machine=(-smp 4 -m 1024)
        memory 512 0 1
        machine+=(-numa node,memdev=m0 -numa node,memdev=m1 -numa cpu,node-id=0,socket-id=0 -numa cpu,node-id=1,socket-id=1
            -numa cpu,node-id=0,socket-id=2 -numa cpu,node-id=1,socket-id=3)
        machine[1]=4,sockets=4,cores=1,threads=1
        ;;
    bare) # node 1 has no memory, node 2 no processor
        machine=(-smp 4 -m 1024)
        memory 512 0 2
        machine+=(-numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3 -numa node,nodeid=2,memdev=m2)
        ;;
    wide) # 64 processors on four nodes
        machine=(-smp 64 -m 1024)
        memory 256 0 1 2 3
        machine+=(-numa node,cpus=0-15,memdev=m0 -numa node,cpus=16-31,memdev=m1 -numa node,cpus=32-47,memdev=m2
            -numa node,cpus=48-63,memdev=m3)
        ;;
    *) missing "no machine $1; there are even, alternate, bare and wide" ;;
    esac
}

# Prints what the guest prints; false where it failed, hung or answered with other bits than this machine.
run_machine() {
    local machine log=$work/$1.log started=$SECONDS
    describe "$1"
    echo "== $1: ${machine[*]}"
    timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max "${machine[@]}" -kernel "$kernel" \
        -initrd "$work/guest.cpio" -append "console=ttyS0 quiet panic=-1 numa_balancing=disable tandem_machine=$1" \
        -nodefaults -display none -serial "file:$log" -no-reboot < /dev/null || true
    tr -d '\r' < "$log" | sed -n '/^guest:/,$p'
    echo "== $1: $((SECONDS - started)) s"
    grep -q '^guest: end, 0 failed' "$log" && [ "$(grep -oh 'bits=[0-9a-f]*' "$log" "$work/here.log" | sort -u | wc -l)" -eq 1 ]
}

make_guest
echo "== this machine, without emulation"
"$program" 2 free auto | tee "$work/here.log" || true
failed=()
for name in "$@"; do
    run_machine "$name" || failed+=("$name")
done
[ ${#failed[@]} -eq 0 ] || { echo "FAILED: ${failed[*]}"; exit 1; }
echo "all right: $*"
