#!/usr/bin/env bash
# Faults of a device and what comes of them (docs/RELIABILITY.md, F05 to F10), sourced by run.sh, which
# brings note, ask, start_pair, start_worker, stop_pair, and $bin, $work, $logs, $model, $failed.

verdict() { # verdict GOOD TEXT
    if [ "$1" = 0 ]; then note "pass $2"; else note "FAIL $2"; failed=1; fi
}

wait_ready() {
    for _ in $(seq 400); do
        "$bin/tandem" health --run-dir "$work/run" > /dev/null 2>&1 && return 0
        sleep 0.05
    done
    return 1
}

# one_fault KIND STEP EXIT EVENT: the worker that has it leaves with EXIT after EVENT, the next one
# finishes the answer as if nothing had happened.
one_fault() {
    local begin code
    kill -9 "$worker"; wait "$worker" 2> /dev/null
    : > "$logs/worker.log"
    start_worker "$model" --debug-device-fault="$1" --debug-fault-step="$2"
    wait_ready
    ask > "$work/faulty" &
    local asking=$!
    begin=$(date +%s%N)
    wait -n "$worker" "$asking" # where the fault does not come the answer ends first
    kill -9 "$worker" 2> /dev/null
    wait "$worker"; code=$?
    local took=$((($(date +%s%N) - begin) / 1000000))
    start_worker "$model"
    wait "$asking"
    # whoever sees a hang first ends it: the worker's own watch (70) or the coordinator (SIGKILL)
    { [ "$code" = "$3" ] || [ "$1:$code" = hang:137 ]; } &&
        grep -q "event=$4" "$logs/worker.log" "$logs/coordinator.log" &&
        [ "$(sha256sum < "$work/faulty")" = "$whole" ]
    verdict $? "fault $1: exit $code after $took ms, $4, the answer is the same"
}

# one_nan KIND COUNT: of COUNT answers one fails with numeric_error, the others and the next are the same.
one_nan() {
    kill -9 "$worker"; wait "$worker" 2> /dev/null
    start_worker "$model" --debug-device-fault="$1" --debug-fault-step=300
    wait_ready
    local i asking=() failures=0 differ=0
    for i in $(seq "$2"); do
        ask "$work/nan.$i.err" > "$work/nan.$i" & asking+=($!)
    done
    for i in $(seq "$2"); do
        if wait "${asking[i - 1]}"; then
            [ "$(sha256sum < "$work/nan.$i")" = "$whole" ] || differ=$((differ + 1))
        else
            failures=$((failures + 1))
            grep -q numeric_error "$work/nan.$i.err" || differ=$((differ + 1))
        fi
    done
    [ $failures = 1 ] && [ $differ = 0 ] && [ "$(ask | sha256sum)" = "$whole" ]
    verdict $? "fault $1 among $2: that request fails, its neighbours and the next are the same"
}

# kill -9 at any moment of a step, $1 times; each answer the same, the memory comes back.
many_kills() {
    local killed=0 answers=0 differ=0
    while [ $killed -lt "$1" ]; do
        ask > "$work/cut" & local asking=$!
        for _ in 1 2 3 4; do
            sleep "0.0$((RANDOM % 90 + 10))"
            kill -0 $asking 2> /dev/null || break
            kill -9 "$worker"; wait "$worker" 2> /dev/null
            killed=$((killed + 1))
            start_worker "$model"
            wait_ready
        done
        wait $asking || differ=$((differ + 1))
        answers=$((answers + 1))
        [ "$(sha256sum < "$work/cut")" = "$whole" ] || differ=$((differ + 1))
    done
    [ $differ = 0 ]
    verdict $? "$killed workers killed in $answers answers: all the same"
}

memory_used() { nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits; }

# A start that finds the memory taken leaves with 75; one that sees it come free serves.
start_memory() {
    kill -9 "$worker"; wait "$worker" 2> /dev/null
    : > "$logs/worker.log"
    "$bin/gpu_hog" 1000000000 > "$work/hog" & local hog=$!
    while ! grep -q ready "$work/hog"; do sleep 0.1; done
    start_worker "$model"
    wait "$worker"; local code=$?
    [ $code = 75 ] && grep -q event=device_oom "$logs/worker.log"
    verdict $? "memory full at start: exit $code, device_oom"
    start_worker "$model"
    sleep 3
    kill -9 $hog; wait $hog 2> /dev/null
    wait_ready && [ "$(ask | sha256sum)" = "$whole" ] && grep -q event=device_memory_wait "$logs/worker.log"
    verdict $? "memory that comes free 3 s later: the start waits for it"
}

library_at_start() {
    kill -9 "$worker"; wait "$worker" 2> /dev/null
    start_worker "$model" --debug-device-fault=open
    wait "$worker"; local code=$?
    [ $code = 75 ]
    verdict $? "cuBLAS cannot be opened: exit $code"
    # files of its names that are no libraries stand in its way
    mkdir -p "$work/broken"
    echo nothing | tee "$work/broken/libcublas.so" > "$work/broken/libcublas.so.13"
    : > "$logs/worker.log"
    LD_LIBRARY_PATH="$work/broken:${LD_LIBRARY_PATH:-}" start_worker "$model"
    wait "$worker"; code=$?
    [ $code = 64 ] && grep -q "cuBLAS cannot be loaded: .*libcublas.so.13" "$logs/worker.log"
    verdict $? "cuBLAS cannot be loaded: exit $code, named"
    : > "$logs/worker.log"
    LD_LIBRARY_PATH="$work/broken:${LD_LIBRARY_PATH:-}" start_worker "$model" --backend auto
    wait "$worker"; code=$?
    [ $code = 64 ] && grep -q "event=device_left_out .*libcublas.so.13" "$logs/worker.log"
    verdict $? "the same with --backend auto: exit $code for the bf16 pool, the log says why"
    start_worker "$model"
    wait_ready
}

# So much memory that all fits but the copy of the weights for the persistent step: for a model whose copy has
# gigabytes, less than serving it takes by MISSING MiB. The answer is the same, from separate kernels.
persistent_off() { # persistent_off MISSING
    local whole used
    whole=$(ask | sha256sum)
    used=$(memory_used)
    kill -9 "$worker"; wait "$worker" 2> /dev/null
    "$bin/gpu_hog" $(((used - $1) * 1048576)) > "$work/hog" & local hog=$!
    while ! grep -q ready "$work/hog"; do sleep 0.1; done
    : > "$logs/worker.log"
    start_worker "$model"
    wait_ready && [ "$(ask | sha256sum)" = "$whole" ] && grep -q event=persistent_step_off "$logs/worker.log"
    verdict $? "no memory for the persistent step ($1 of $used MiB missing): the answer is the same"
    kill -9 "$worker"; wait "$worker" 2> /dev/null
    kill -9 $hog; wait $hog 2> /dev/null
    start_worker "$model"
    wait_ready
}

test_faults() {
    whole=$(ask | sha256sum)
    one_fault trap 700 70 cuda_failed
    one_fault hang 700 70 worker_hang
    one_fault library 1 70 library_failed
    one_nan nan 2
    one_nan negative-nan 2
    one_nan nan 12
    one_nan negative-nan 12
    library_at_start
    start_memory
    many_kills 50
    stop_pair
    sleep 2
    [ "$(memory_used)" -lt 100 ]
    verdict $? "memory is back: $(memory_used) MiB in use"
}
