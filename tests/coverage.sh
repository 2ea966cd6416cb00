#!/usr/bin/env bash
# Branch coverage of the coordinator's core, of proto and of the readers of model files: builds with
# gcc's counters, runs their unit tests, the simulator, the fuzz corpora and the tests of failing
# memory, prints a table.
#
# usage: tests/coverage.sh [--missing] [MINIMUM]
#   --missing  also every branch that was never taken
#   MINIMUM    exit 1 if a group has less than so many percent (90)
# Environment: TANDEM_COVERAGE_BUILD (build/coverage), TANDEM_COVERAGE_SIM (arguments of the
#   simulator, "400 1 400").
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
if [ "${1:-}" = --missing ]; then
    missing=(--missing)
    shift
fi
minimum=${1:-90}
build=${TANDEM_COVERAGE_BUILD:-build/coverage}
read -r -a simulation <<< "${TANDEM_COVERAGE_SIM:-400 1 400}"

targets=(core_sim core_memory_test start_memory_test)
for source in tests/unit/{coordinator,proto}/*_test.c \
    tests/unit/common/{gguf,gguf_values,json_input,mapped_file,model_*,safetensors}_test.c; do
    folder=$(basename "$(dirname "$source")")
    targets+=("${folder}_$(basename "$source" .c)")
done
fuzzed=(client_frame_fuzz worker_frame_fuzz attach_packet_fuzz segment_header_fuzz gguf_fuzz
    safetensors_fuzz)

mkdir -p "$build"
# DEBUG_CHECK is off as in a release: its conditions are no branches of the product.
cmake -G Ninja -B "$build" -DCMAKE_BUILD_TYPE=Debug -DTANDEM_CUDA=OFF \
    "-DCMAKE_C_FLAGS=-O0 -DNDEBUG --coverage -fprofile-abs-path" > "$build/cmake.log"
nice -n 10 ninja -C "$build" "${targets[@]}" "${fuzzed[@]}" > "$build/build.log" ||
    { tail -n 30 "$build/build.log" >&2; exit 1; }

find "$build" -name '*.gcda' -delete
for target in "${targets[@]}"; do
    arguments=()
    [ "$target" = core_sim ] && arguments=("${simulation[@]}")
    (cd "$build" && "bin/$target" "${arguments[@]}" > "$target.log" 2>&1) ||
        { echo "$target failed: see $build/$target.log" >&2; exit 1; }
done
for target in "${fuzzed[@]}"; do
    "$build/bin/$target" "tests/fuzz/corpus/$target" > "$build/$target.log" 2>&1 ||
        { echo "$target failed: see $build/$target.log" >&2; exit 1; }
done
python3 tests/coverage.py "$build" "$minimum" "${missing[@]}"
