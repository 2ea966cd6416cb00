#!/bin/busybox sh
# shellcheck shell=dash
# First process of the emulated machine (tests/numa/run.sh): runs numa_placement in all the ways that
# the machine named by tandem_machine= asks for, and ends the machine.
failed=0

# attempt WHAT COMMAND...: the program's own exit status counts.
attempt() {
    what=$1
    shift
    read -r began rest < /proc/uptime
    echo "guest: $what"
    "$@" || { echo "guest: FAILED ($?): $what"; failed=$((failed + 1)); }
    read -r ended rest < /proc/uptime
    echo "guest: from $began to $ended s"
}

# In a control group with these processors and these memory nodes.
confined() {
    mkdir "/sys/fs/cgroup/$1.$2"
    echo "$1" > "/sys/fs/cgroup/$1.$2/cpuset.cpus"
    echo "$2" > "/sys/fs/cgroup/$1.$2/cpuset.mems"
    shift 2
    sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "/sys/fs/cgroup/$confines" "$@"
}

placement=/bin/numa_placement

even() {
    for test in /bin/*_test; do
        attempt "${test##*/}" "$test"
    done
    for threads in 1 2 3 4; do
        attempt "$threads threads" $placement $threads free avx2
    done
    attempt "4 threads, pinned" $placement 4 pin avx2
    attempt "2 threads, pinned" $placement 2 pin avx2
    attempt "as many as there are cores" $placement 0 pin auto
    attempt "more threads than processors" $placement 9 free avx2
    attempt "a system that refuses memory policies" $placement 4 refused avx2
    echo never > /sys/kernel/mm/transparent_hugepage/enabled
    attempt "the same without huge pages" $placement 4 refused avx2
    attempt "no huge pages" $placement 4 free avx2
    echo always > /sys/kernel/mm/transparent_hugepage/enabled
    echo 1 > /proc/sys/kernel/numa_balancing
    attempt "a system that moves pages to their readers" $placement 4 free avx2
    echo 0 > /proc/sys/kernel/numa_balancing
    attempt "plain C" $placement 4 free plain
    attempt "processors of node 1 alone" taskset c $placement 0 free avx2
    attempt "one processor of each node" taskset 6 $placement 0 pin avx2
    attempt "three threads of one processor" taskset 8 $placement 3 pin avx2
    confines=2-3.1
    attempt "a control group of node 1" confined 2-3 1 $placement 0 free avx2
    confines=0-3.1
    attempt "a control group of all processors and the memory of node 1" confined 0-3 1 $placement 0 free avx2
}

alternate() {
    for threads in 1 2 3 4; do
        attempt "$threads threads, pinned" $placement $threads pin avx2
    done
    attempt "4 threads" $placement 4 free avx2
}

bare() {
    for threads in 1 4; do
        attempt "$threads threads" $placement $threads free avx2
    done
    attempt "4 threads, pinned" $placement 4 pin avx2
    attempt "processors of the node without memory" taskset c $placement 0 pin avx2
}

wide() {
    for threads in 1 64; do
        attempt "$threads threads" $placement $threads free avx2
    done
    attempt "as many as there are cores, pinned" $placement 0 pin avx2
}

/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t cgroup2 none /sys/fs/cgroup
echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control
mkdir -p /dev
[ -c /dev/null ] || mknod /dev/null c 1 3
for node in /sys/devices/system/node/node[0-9]*; do
    echo "guest: ${node##*/} processors $(cat "$node/cpulist") $(grep -o 'MemTotal:.*' "$node/meminfo" | tr -s ' ')"
done
${tandem_machine:?}
echo "guest: end, $failed failed"
reboot -f
