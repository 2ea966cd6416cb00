#!/usr/bin/env bash
# Runs the fuzz targets with libFuzzer under ASan and UBSan (clang) and prints a table.
#
# usage: tests/fuzz/run.sh [SECONDS [TARGET...]]
#   SECONDS  for each target, 60 by default
#   TARGET   stems such as gguf_fuzz; all by default
# Environment: TANDEM_FUZZ_BUILD (build/fuzz) where it builds and leaves logs, corpora and findings;
#   TANDEM_FUZZ_JOBS targets at a time (the number of cores). cpu_s of the table says what each had.
# Findings lie in TANDEM_FUZZ_BUILD/findings; exit 1 if there are any. Runs at the lowest priority.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:-60}
shift || true
build=${TANDEM_FUZZ_BUILD:-build/fuzz}
jobs=${TANDEM_FUZZ_JOBS:-$(nproc)}
if [ $# -gt 0 ]; then
    targets=("$@")
else
    mapfile -t targets < <(cd tests/fuzz && printf '%s\n' *_fuzz.c | sed 's/[.]c$//')
fi

mkdir -p "$build"
# All of the code is instrumented for coverage, not only the targets. Warnings are the business of gcc.
CC=clang cmake -G Ninja -B "$build" -DCMAKE_BUILD_TYPE=Debug -DTANDEM_SANITIZE=address \
    -DTANDEM_FUZZ=ON -DTANDEM_CUDA=OFF "-DCMAKE_C_FLAGS=-O1 -w -fsanitize=fuzzer-no-link" > "$build/cmake.log"
nice -n 19 ninja -C "$build" "${targets[@]/%/_libfuzzer}" > "$build/build.log" ||
    { tail -n 30 "$build/build.log" >&2; exit 1; }

# fuzz TARGET: the committed corpus is read only; what is found to be new goes to the build folder.
fuzz() {
    local target=$1
    mkdir -p "$build/corpus/$target" "$build/findings"
    local TIMEFORMAT=%U
    time nice -n 19 "$build/bin/${target}_libfuzzer" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 \
        -max_len=8192 -print_final_stats=1 -artifact_prefix="$build/findings/$target-" \
        "$build/corpus/$target" "tests/fuzz/corpus/$target" > "$build/$target.log" 2>&1 || true
} 2> "$build/$1.seconds"
export -f fuzz
export build seconds
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'fuzz {}'

# The figures of a run stand in libFuzzer's last status line and its final statistics.
row() {
    local log=$build/$1.log
    printf '%-22s %12s %9s %9s %8s %9s %9s\n' "$1" \
        "$(awk '/stat::number_of_executed_units/ { print $2 }' "$log")" \
        "$(tail -n 1 "$build/$1.seconds")" \
        "$(awk '/stat::average_exec_per_sec/ { print $2 }' "$log")" \
        "$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -c6-)" \
        "$(grep -o 'ft: [0-9]*' "$log" | tail -n 1 | cut -c5-)" \
        "$(find "$build/findings" -name "$1-*" | wc -l)"
}
printf '%-22s %12s %9s %9s %8s %9s %9s\n' target executions cpu_s per_s coverage features findings
bad=0
for target in "${targets[@]}"; do
    row "$target"
    grep -q '^Done ' "$build/$target.log" || { echo "$target did not come to its end: see $build/$target.log"; bad=1; }
done
[ -z "$(find "$build/findings" -type f)" ] || bad=1
exit $bad
