#!/usr/bin/env bash
# clang-tidy (.clang-tidy) over the C sources of the programs; needs deploy/install-deps.sh --tools. Slow: on request.
# usage: tidy.sh [BUILD]   a configured build directory, default build/release
set -euo pipefail
. "$(dirname "$0")/places.sh"
build=${1:-$build}
command -v clang-tidy-14 > /dev/null ||
    fail $EXIT_SYSTEM "clang-tidy-14 is missing: deploy/install-deps.sh --tools installs it."
[ -f "$build/compile_commands.json" ] ||
    fail $EXIT_USAGE "$build is not configured: run cmake --preset release first."
cd "$tree"
find common proto kernels coordinator worker client -name '*.c' -print0 | sort -z |
    xargs -0 -n 4 -P "$(nproc)" clang-tidy-14 --quiet -p "$build"
