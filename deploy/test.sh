#!/usr/bin/env bash
# README command two: installs what the tests need, builds, runs them.
set -euo pipefail
cd "$(dirname "$0")/.."
deploy/install-deps.sh --tests
cmake --preset release
cmake --build --preset release
ctest --preset release -j "$(nproc)"
