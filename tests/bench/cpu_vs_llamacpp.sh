#!/usr/bin/env bash
# Our CPU backend beside llama.cpp's on the same file with the same threads, alternating.
#
# usage: tests/bench/cpu_vs_llamacpp.sh MODEL.gguf [OPTIONS of cpu_vs_llamacpp.py] [VARIANT...]
#        tests/bench/cpu_vs_llamacpp.sh build
# VARIANT: q4_0, q8_0, bf16, f16, or the same with 1b- before (the shape of Llama-3.2-1B): made out of MODEL by
# make_variants.py and measured instead of it; `model` is MODEL itself. See cpu_vs_llamacpp.py for the options.
#
# llama.cpp comes once from the source package of llama-cpp-python and is built for this processor in build/llama.cpp,
# about 12 minutes on two cores; an interrupted build goes on. Needs python3 with venv, a C++ compiler and
# a release build with tests of this project (cmake --preset release -DTANDEM_TESTS=ON).
set -euo pipefail
tree=$(cd "$(dirname "$0")/../.." && pwd)
place=$tree/build/llama.cpp
version=0.3.36

fetch() {
    "$place/venv/bin/python" -c 'import gguf, ninja, numpy' 2> /dev/null || {
        python3 -m venv "$place/venv"
        "$place/venv/bin/pip" -q install scikit-build-core cmake ninja gguf numpy
    }
    [ -e "$place/llama_cpp_python-$version.tar.gz" ] ||
        (cd "$place" && venv/bin/pip -q download --no-deps --no-binary llama-cpp-python --no-build-isolation \
            "llama-cpp-python==$version")
    [ -d "$place/source" ] || {
        tar -C "$place" -xzf "$place/llama_cpp_python-$version.tar.gz"
        mv "$place/llama_cpp_python-$version" "$place/source"
    }
}

# gcc takes _tile_loadconfig() for one that reads 8 of its 64 bytes, so what llama.cpp stores in the others is gone where
# dead stores are: its prompts die of an illegal instruction. That source is compiled without.
launcher() {
    cat > "$place/launcher" << 'END'
#!/bin/sh
case "$*" in
*amx/mmq.cpp*) exec "$@" -fno-tree-dse -fno-dse ;;
*) exec "$@" ;;
esac
END
    chmod +x "$place/launcher"
}

build() {
    mkdir -p "$place"
    fetch
    launcher
    PATH=$place/venv/bin:$PATH cmake -S "$place/source/vendor/llama.cpp" -B "$place/build" -G Ninja \
        -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DGGML_NATIVE=ON \
        -DGGML_CCACHE=OFF -DCMAKE_CXX_COMPILER_LAUNCHER="$place/launcher" > "$place/configure.log"
    PATH=$place/venv/bin:$PATH cmake --build "$place/build" -j"$(nproc)" \
        --target llama-bench llama-batched-bench llama-perplexity > "$place/build.log"
}

[ $# -ge 1 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 64; }
[ -x "$place/build/bin/llama-perplexity" ] && [ -x "$place/launcher" ] && [ "$1" != build ] || build
[ "$1" != build ] || exit 0
model=$1
shift
options=() files=()
while [ $# -gt 0 ]; do
    case $1 in
    --*=*) options+=("$1") ;;
    --*) options+=("$1" "$2"); shift ;;
    model) files+=("$model") ;;
    *) files+=("$("$place/venv/bin/python" "$tree/tests/bench/make_variants.py" "$model" "$place/models" "$1")") ;;
    esac
    shift
done
[ ${#files[@]} -gt 0 ] || files=("$model")
exec python3 "$tree/tests/bench/cpu_vs_llamacpp.py" --llama "$place/build/bin" ${options[@]+"${options[@]}"} "${files[@]}"
