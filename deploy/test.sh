#!/usr/bin/env bash
# README command two: installs what the tests need, fetches the model, builds, runs the tests.
#
# usage: test.sh [all|quick|release|asan|tsan|tsan-all]
#   quick    release build, the tests of less than a minute
#   release  release build, all tests
#   asan     address and undefined-behaviour sanitizers: all tests of our own code
#   tsan     thread sanitizer: ports, shared memory, thread pool, client library, both processes together
#   tsan-all the same and, at reduced size, the simulator, kills, floods and hostile peers (15 to 20 minutes)
#   all      release, asan, tsan (the default; what CI runs)
set -euo pipefail
. "$(dirname "$0")/places.sh"

part=${1:-all}
case $part in
all) parts=(release asan tsan) ;;
quick | release | asan | tsan | tsan-all) parts=("$part") ;;
*) fail $EXIT_USAGE "unknown part $part; there are all, quick, release, asan, tsan, tsan-all." ;;
esac
trap 'fail $EXIT_INTERRUPTED "interrupted; run it again to go on."' INT TERM

cd "$tree"
[ -w . ] || fail $EXIT_PERMISSION "cannot write to $tree: give it to $(id -un) or work in a copy of your own."
deploy/install-deps.sh --tests
TANDEM_TEST_MODEL=$(deploy/fetch-model.sh)
export TANDEM_TEST_MODEL
need_space "$tree" 1500 "the builds"

# build PRESET: quiet unless it fails.
build() {
    local log=build/$1.log
    mkdir -p build
    if ! { cmake --preset "$1" -DTANDEM_TESTS=ON && cmake --build --preset "$1"; } > "$log" 2>&1; then
        grep -E -A 5 'error|FAILED|warning' "$log" | head -n 60 >&2 || tail -n 20 "$log" >&2
        fail $EXIT_SYSTEM "the $1 build failed, see build/$1.log."
    fi
}

# run PRESET CTEST-ARGUMENT...
run() {
    local preset=$1 began=$SECONDS
    shift
    echo "== $preset: building"
    build "$preset"
    echo "== $preset: built in $((SECONDS - began)) s, testing"
    began=$SECONDS
    ctest --preset "$preset" -j "$(($(nproc) + 1))" "$@"
    echo "== $preset: tested in $((SECONDS - began)) s"
}

# Tests in which threads of ours meet.
threaded='^unit[.](common|client|kernels_cpu|coordinator)[.]|^unit[.]proto[.](segment|shown)|^kernels[.]pool'
threaded+='|^faults[.]start_memory|^integration[.](generate|bad_input|attach|hostile)$|^support'

for part in "${parts[@]}"; do
    case $part in
    quick) run release -L quick ;;
    release) run release -LE gpu ;; # tests/gpu/run.sh runs those where the device is
    asan)
        # Not detect_stack_use_after_return: gcc's copies of frames are not aligned as their variables ask.
        ASAN_OPTIONS=strict_string_checks=1 \
            UBSAN_OPTIONS=print_stacktrace=1 run asan -E '^(lint|deploy)[.]'
        ;;
    tsan | tsan-all)
        [ "$part" = tsan ] || threaded+='|^integration|^sim|^faults'
        # What lies inside libnng is not ours to judge.
        TSAN_OPTIONS=suppressions=$tree/tests/support/tsan.supp:halt_on_error=1 \
            run tsan -R "$threaded"
        ;;
    esac
done
