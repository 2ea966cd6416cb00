#!/usr/bin/env bash
# From the end of a step to the client's return from tandem_next, without a device: a coordinator, a scripted worker
# whose steps take STEP_US each, clients in eight processes. Prints the medians of gpu_serve_bench and the processor
# time of the coordinator. COORDINATOR: another build's program to compare with.
# usage: tests/bench/arrival.sh BIN MODEL STEP_US CASE...   (CASE as of gpu_serve_bench, such as 1:64:128:1x9)
set -uo pipefail
[ $# -ge 4 ] || { sed -n 's/^# usage: //p' "$0" >&2; exit 64; }
bin=$1 model=$2 step=$3
shift 3
work=$(mktemp -d)
log=$(mktemp -p "$([ -d /dev/shm ] && echo /dev/shm || echo "$work")") # a line a step: no disk shall make it wait
coordinator= worker=
stop() {
    [ -z "$worker" ] || kill "$worker" 2> /dev/null
    wait $worker 2> /dev/null
    [ -z "$coordinator" ] || kill "$coordinator" 2> /dev/null
    wait 2> /dev/null
    rm -rf "$work" "$log"
}
trap stop EXIT

mkdir "$work/run"
"${COORDINATOR:-$bin/tandem-coordinator}" --run-dir "$work/run" --model "$model" --kv-pool-bytes 64M --slots 256 \
    --log-level error &
coordinator=$!
"$bin/scripted_worker" "$work/run" "$model" "$step" level=debug > "$work/worker.out" 2>> "$log" &
worker=$!
for _ in $(seq 200); do
    "$bin/tandem" health --run-dir "$work/run" > /dev/null 2>&1 && break
    sleep 0.02
done
timeout 60 "$bin/gpu_serve_bench" --worker-log "$log" "$work/run" 49000 "$@" | grep '^median' || exit 1
awk '{ busy += $1; runs += $3 } END { printf "coordinator: %.0f ms of processor time, %d runs of its threads\n", busy / 1e6, runs }' \
    /proc/"$coordinator"/task/*/schedstat
