#!/usr/bin/env bash
# All tests and measurements that need a device, on a bare GPU host: builds, tests, sanitizers, times.
# Prints a table; docs/BENCHMARKS.md holds its last committed output.
# usage: tests/gpu/run.sh [TOKENIZER.gguf]
# TOKENIZER.gguf: a model whose tokenizer the served models get (its header is enough); without it the pair is not run.
# TANDEM_ORACLE=no: without the comparison with transformers, which takes minutes.
# TANDEM_BIN: a folder of programs that are built already. TANDEM_LOGS: where full logs go.
set -uo pipefail
cd "$(dirname "$0")/../.."
tokenizer=${1:-}
logs=${TANDEM_LOGS:-$(mktemp -d)}
work=$(mktemp -d)
bin=${TANDEM_BIN:-}
failed=0

note() { printf '%s\n' "$*"; }

# check NAME COMMAND...: runs it, one line of verdict, the failures of its log.
check() {
    local name=$1
    shift
    if timeout 120 "$@" > "$logs/$name.log" 2>&1; then
        note "pass $name"
    else
        note "FAIL $name (exit $?)"
        grep -v '^ok' "$logs/$name.log" | tail -15
        failed=1
    fi
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
        --slots 256 --step-tokens 2304 --debug-logits-hash="$hash" "$@" >> "$logs/worker.log" 2>&1 &
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
    for _ in $(seq 300); do
        "$bin/tandem" health --run-dir "$work/run" > /dev/null 2>&1 && return 0
        sleep 0.1
    done
    note "FAIL the pair does not get ready"
    tail -n 3 "$logs/worker.log"
    failed=1
    return 1
}

# ask [FILE_FOR_ERRORS]: the prompt has more than 16 tokens, so that its products are the library's.
ask() {
    "$bin/tandem" generate --run-dir "$work/run" --max-tokens 3500 --ignore-eos "Once upon a time there was a miller who had three \
sons, a mill, a donkey and a cat, and when he died they shared all of it among them." 2>> "${1:-$logs/cli.log}"
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

. tests/gpu/faults.sh

date -u "+%F %H:%M"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,power.draw --format=csv,noheader
if [ -z "$bin" ]; then
    cmake --preset release -B "$work/build" > "$logs/configure.log" 2>&1 &&
        cmake --build "$work/build" > "$logs/build.log" 2>&1 || { tail -20 "$logs"/build.log; exit 1; }
    bin=$work/build/bin
fi
check kernels "$bin/gpu_kernels_test"
check steps "$bin/gpu_step_test"
timeout 120 "$bin/gpu_step_bench" 2> "$logs/bench.err" | tee "$logs/bench.log"
timeout 60 "$bin/gpu_price_bench" | tee "$logs/price.log"
if [ -n "$tokenizer" ]; then
    python3 tests/gpu/make_models.py "$tokenizer" "$work" small llama-1b
    model=$work/small.gguf hash=yes
    if start_pair "$model" --slots 16; then
        test_kill
        test_faults
    fi
    stop_pair
    model=$work/llama-1b.gguf hash=no
    begin=$(date +%s%3N)
    if start_pair "$model" --slots 256 --step-tokens 2304; then
        note "llama-1b: ready after $(($(date +%s%3N) - begin)) ms, start of both programs included"
        "$bin/gpu_serve_bench" "$work/run" 49000 1:64:2:1 > "$logs/first.log"
        note "llama-1b: first token of a prompt of 64 after $(($(date +%s%3N) - begin)) ms"
        timeout 200 "$bin/gpu_serve_bench" "$work/run" 49000 1:64:128:1 1:64:128:1 1:64:128:1 1:960:128:1 1:960:128:1 \
            64:960:128:1 64:960:128:8 64:960:128:8 64:960:128:8 256:192:128:8 256:192:128:8 256:192:128:8 \
            256:100-1024:256:8 256:100-1024:256:8 2>&1 | tee "$logs/serve.log"
    fi
    stop_pair
fi
nvidia-smi --query-gpu=clocks.sm,power.draw,memory.used --format=csv,noheader
# whole models against transformers, where these are (TANDEM_ORACLE=no: not)
if [ "${TANDEM_ORACLE:-yes}" = yes ] && python3 -c 'import torch, transformers' 2> /dev/null; then
    timeout 900 tests/gpu/oracle.sh "$bin" 2>&1 | tee "$logs/oracle.log"
    [ "${PIPESTATUS[0]}" = 0 ] || failed=1
fi
# slow: a few steps of a small model
for tool in memcheck initcheck synccheck racecheck; do
    check "$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/gpu_step_test" least
done
[ "$failed" = 0 ] && note "all passed" || note "SOMETHING FAILED"
exit "$failed"
