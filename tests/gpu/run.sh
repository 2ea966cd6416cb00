#!/usr/bin/env bash
# All tests and measurements that need a device, on a bare GPU host: builds, tests, sanitizers, times.
# Prints a table; docs/BENCHMARKS.md holds its last committed output.
# usage: tests/gpu/run.sh [TOKENIZER.gguf]
# TOKENIZER.gguf: a model whose tokenizer the served models get (its header is enough); without it the pair is not run.
# TANDEM_PARTS: which of  check bench serve faults profile scale  to run; all by default.
# TANDEM_ORACLE=no: without the comparison with transformers.
# TANDEM_BIN: a folder of programs that are built already. TANDEM_LOGS: where full logs go.
set -uo pipefail
cd "$(dirname "$0")/../.."
tokenizer=${1:-}
logs=${TANDEM_LOGS:-$(mktemp -d)}
work=$(mktemp -d)
bin=${TANDEM_BIN:-}
failed=0
jobs=()
declare -A job_pid

note() { printf '%s\n' "$*"; }
section() { note "== $* (after $SECONDS s)"; }
wants() { [[ " ${TANDEM_PARTS:-check bench serve faults profile scale} " = *" $1 "* ]]; }

# begin NAME SECONDS COMMAND...: beside the others; `verdicts` waits for all and says how they ended.
begin() {
    local name=$1 seconds=$2
    shift 2
    timeout "$seconds" "$@" > "$logs/$name.log" 2>&1 &
    job_pid[$name]=$!
    jobs+=("$name")
}

verdicts() {
    local name code
    for name in "${jobs[@]}"; do
        wait "${job_pid[$name]}"
        code=$?
        if [ $code = 0 ]; then
            note "pass $name"
        else
            note "FAIL $name (exit $code)"
            grep -v '^ok' "$logs/$name.log" | tail -15
            failed=1
        fi
        grep -hE '^(pass oracle|FAIL oracle|instructions:|Model name)' "$logs/$name.log"
    done
    jobs=()
}

stop_pair() {
    [ -n "${worker:-}" ] && kill "$worker" 2> /dev/null
    [ -n "${coordinator:-}" ] && kill "$coordinator" 2> /dev/null
    wait 2> /dev/null
    worker= coordinator=
}
trap stop_pair EXIT

# start_worker MODEL OPTIONS...
start_worker() {
    local model=$1
    shift
    "$bin/tandem-worker" --run-dir "$work/run" --model "$model" --backend cuda --kv-type bf16 --kv-pool-bytes 6G \
        --slots 256 --step-tokens 2304 --debug-logits-hash="$hash" --log-level "$level" "$@" >> "$worker_log" 2>&1 &
    worker=$!
}

# start_pair MODEL OPTIONS...: waits until it answers.
start_pair() {
    local model=$1
    shift
    mkdir -p "$work/run"
    "$bin/tandem-coordinator" --run-dir "$work/run" --model "$model" --kv-type bf16 --kv-pool-bytes 6G "$@" \
        >> "$logs/coordinator.log" 2>&1 &
    coordinator=$!
    start_worker "$model"
    for _ in $(seq 600); do
        "$bin/tandem" health --run-dir "$work/run" > /dev/null 2>&1 && return 0
        sleep 0.05
    done
    note "FAIL the pair does not get ready"
    tail -n 3 "$worker_log"
    failed=1
    return 1
}

# ask [FILE_FOR_ERRORS]: the prompt has more than 128 tokens, so that its products are the library's.
ask() {
    local tale="Once upon a time there was a miller who had three sons, a mill, a donkey and a cat, and when he died they \
shared all of it among them."
    "$bin/tandem" generate --run-dir "$work/run" --max-tokens 3500 --ignore-eos "$tale $tale $tale $tale $tale" \
        2>> "${1:-$logs/cli.log}"
}

# The answer of an undisturbed run, and with the worker killed up to four times on the way.
test_kill() {
    local whole cut
    whole=$(ask | sha256sum)
    ask > "$work/cut" &
    local asking=$!
    for _ in 1 2 3 4; do
        sleep 0.1
        kill -9 "$worker"
        wait "$worker" 2> /dev/null
        start_worker "$model"
        for _ in $(seq 100); do # until it serves
            "$bin/tandem" health --run-dir "$work/run" > /dev/null 2>&1 && break
            sleep 0.05
        done
    done
    wait "$asking"
    cut=$(sha256sum < "$work/cut")
    if ! grep -q 'event=worker_lost .*running=1' "$logs/coordinator.log"; then
        note "FAIL no worker was killed while it answered"
        failed=1
    elif [ "$whole" = "$cut" ] && [ -s "$work/cut" ]; then
        note "pass the answer is the same with workers killed on the way"
    else
        note "FAIL the answer differs after kill -9 of the worker"
        failed=1
    fi
}

# From the start of both programs to the first token of a prompt of 64, five times.
test_start() {
    local begin times=()
    for _ in 1 2 3 4 5; do
        begin=$(date +%s%3N)
        start_pair "$model" --slots 256 --step-tokens 2304 || return
        "$bin/gpu_serve_bench" "$work/run" 49000 1:64:2:1 > "$logs/first.log"
        times+=($(($(date +%s%3N) - begin)))
        stop_pair
    done
    note "start of both programs to the first token, ms: $(printf '%s\n' "${times[@]}" | sort -n | tr '\n' ' ')"
}

# sampled COMMAND...: median of clock and power while it runs.
sampled() {
    nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits -lms 100 > "$logs/power.log" &
    local sampler=$!
    "$@"
    kill $sampler; wait $sampler 2> /dev/null
    sort -n "$logs/power.log" | awk -F, '{ clock[NR] = $1; if ($2 > most) most = $2 } END {
        printf "clock median %d MHz, least %d; power at most %d W (of %d samples)\n", clock[int((NR + 1) / 2)], clock[1], most, NR }'
}

serve() {
    timeout 200 "$bin/gpu_serve_bench" --worker-log "$worker_log" "$work/run" 49000 "$@" 2>&1 | tee -a "$logs/serve.log" |
        grep -v '^serve '
}

. tests/gpu/faults.sh

date -u "+%F %H:%M"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw,power.limit --format=csv,noheader
hash=no level=info worker_log=$logs/worker.log
if [ -z "$bin" ]; then
    cmake --preset release -B "$work/build" > "$logs/configure.log" 2>&1 &&
        cmake --build "$work/build" > "$logs/build.log" 2>&1 || { tail -20 "$logs"/build.log; exit 1; }
    bin=$work/build/bin
fi
[ -z "$tokenizer" ] || python3 tests/gpu/make_models.py "$tokenizer" "$work" small llama-1b || exit 1

if wants bench; then
    section times of steps
    timeout 120 "$bin/gpu_step_bench" 2> "$logs/bench.err" | tee "$logs/bench.log"
    section the price of equal bits
    timeout 90 "$bin/gpu_price_bench" | tee "$logs/price.log"
    python3 -c 'import torch' 2> /dev/null && timeout 60 python3 tests/gpu/attention_price.py
fi
if wants serve && [ -n "$tokenizer" ]; then
    section end to end
    model=$work/llama-1b.gguf
    test_start
    level=debug
    [ -d /dev/shm ] && worker_log=$(mktemp -p /dev/shm) # a line a step: no disk shall make the worker wait
    if start_pair "$model" --slots 256 --step-tokens 2304; then
        serve 1:64:128:1x7 1:960:128:1x7 64:960:128:1x5 64:960:128:8x5 256:192:128:8x5 256:100-1024:256:8x5
        sampled serve 64:960:128:8x5
    fi
    stop_pair
    [ "$worker_log" = "$logs/worker.log" ] || rm -f "$worker_log"
    level=info worker_log=$logs/worker.log
fi
if wants faults && [ -n "$tokenizer" ]; then
    section faults
    model=$work/llama-1b.gguf
    if start_pair "$model" --slots 16; then
        persistent_off 1200
    fi
    stop_pair
    model=$work/small.gguf hash=yes
    if start_pair "$model" --slots 16; then
        test_kill
        test_faults
    fi
    stop_pair
fi
if wants check; then # beside each other: nothing here is timed
    section checks
    begin kernels 120 "$bin/gpu_kernels_test"
    begin steps 240 "$bin/gpu_step_test"
    for tool in memcheck initcheck synccheck racecheck; do # slow: a few steps of a small model
        begin "$tool" 240 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/gpu_step_test" least
    done
    [ -z "$tokenizer" ] || begin cpu 240 tests/gpu/cpu.sh check "$bin" "$tokenizer"
    # whole models against transformers, where these are
    [ "${TANDEM_ORACLE:-yes}" = yes ] && python3 -c 'import torch, transformers' 2> /dev/null &&
        begin oracle 400 tests/gpu/oracle.sh "$bin"
    verdicts
fi
if wants profile && command -v ncu > /dev/null; then
    section kernels of a step
    timeout 120 ncu --csv --clock-control none --profile-from-start off --metrics gpu__time_duration.sum \
        "$bin/gpu_step_bench" profile 64:1024 256:256 2> "$logs/profile.err" | tee "$logs/profile.csv" |
        python3 tests/gpu/profile.py || failed=1
fi
if wants scale && [ -n "$tokenizer" ]; then
    section the CPU backend by threads
    timeout 120 tests/gpu/cpu.sh scale "$bin" "$tokenizer" | tee "$logs/scale.log"
fi
section end
nvidia-smi --query-gpu=clocks.sm,power.draw,memory.used --format=csv,noheader
[ "$failed" = 0 ] && note "all passed" || note "SOMETHING FAILED"
exit "$failed"
