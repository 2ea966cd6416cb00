#!/usr/bin/env bash
# The CPU backend on the processor of a GPU host, which is another one than where it is written: equal bits of all
# instruction sets, and how steps and products scale with threads.
# usage: tests/gpu/cpu.sh check|scale BIN TOKENIZER.gguf
set -uo pipefail
cd "$(dirname "$0")/../.."
[ $# = 3 ] || { sed -n '4p' "$0" >&2; exit 64; }
what=$1 bin=$2 tokenizer=$3 failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

describe() {
    lscpu | grep -E '^(Model name|Thread|Core|Socket|NUMA node)' | sed 's/  */ /'
    printf 'instructions:'
    for flag in avx2 fma f16c avx512f avx512_vnni avx512_bf16 avx512_fp16 amx_bf16 amx_int8; do
        grep -qw "$flag" /proc/cpuinfo && printf ' %s' "$flag"
    done
    echo
}

# The kernel tests hold pinned hashes and compare all instruction sets and 1 to 8 threads; kernels_cpu_flushing_test proves
# what the bf16 instruction computes; then whole services.
check() {
    for test in "$bin"/backends_*_test "$bin"/kernels_*_test; do
        "$test" > "$work/log" 2>&1 && echo "ok   $(basename "$test")" ||
            { echo "FAIL $(basename "$test")"; tail -n 20 "$work/log"; failed=1; }
    done
    python3 tests/support/make_model.py --model "$tokenizer" "$work/models" tiny tiny-q4_1 tiny-bf16 > "$work/log" 2>&1 &&
        TANDEM_BIN=$bin TANDEM_MODELS=$work/models python3 -B tests/integration/equal_bits_test.py > "$work/log" 2>&1 &&
        echo "ok   equal_bits_test.py" || { echo "FAIL equal_bits_test.py"; tail -n 20 "$work/log"; failed=1; }
}

scale() {
    python3 tests/gpu/make_models.py "$tokenizer" "$work" smollm2-135m
    for threads in 1 2 4 8 16; do
        [ "$threads" -le "$(nproc)" ] || continue
        echo "model_bench, shape of SmolLM2-135M in Q4_1, $threads threads"
        "$bin/model_bench" "$work/smollm2-135m.gguf" --threads=$threads pp512 tg128 b8 b32
    done
    for threads in 2 4 8 16; do
        [ "$threads" -le "$(nproc)" ] || continue
        echo "kernels_bench, $threads threads"
        "$bin/kernels_bench" $threads auto matmul Q4_1
    done
}

describe
"$what"
exit "$failed"
