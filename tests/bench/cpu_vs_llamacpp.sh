#!/usr/bin/env bash
# Our CPU backend beside llama.cpp's on the same file with the same threads, alternating.
#
# usage: tests/bench/cpu_vs_llamacpp.sh MODEL.gguf [OPTIONS of cpu_vs_llamacpp.py] [VARIANT...]
#        tests/bench/cpu_vs_llamacpp.sh build
# VARIANT: q4_0, q8_0, bf16, f16, or the same with 1b- before (the shape of Llama-3.2-1B): made out of MODEL by
# make_variants.py and measured instead of it; `model` is MODEL itself. See cpu_vs_llamacpp.py for the options.
#
# llama.cpp comes once from the source package of llama-cpp-python and is built for this processor in build/llama.cpp,
# about 12 minutes on two cores; an interrupted build goes on. Where that build dies on a prompt because the system under
# it loses AMX tiles (seen on a virtual machine), a second one without AMX takes its place, and the run says so. Needs
# python3 with venv, a C++ compiler and a release build with tests of this project (cmake --preset release
# -DTANDEM_TESTS=ON).
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

# build FOLDER [COMPILER_FLAG...]
build() {
    local folder=$1
    shift
    mkdir -p "$place"
    fetch
    PATH=$place/venv/bin:$PATH cmake -S "$place/source/vendor/llama.cpp" -B "$place/$folder" -G Ninja \
        -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DGGML_NATIVE=ON \
        -DCMAKE_C_FLAGS="$*" -DCMAKE_CXX_FLAGS="$*" > "$place/configure.log"
    PATH=$place/venv/bin:$PATH cmake --build "$place/$folder" -j"$(nproc)" \
        --target llama-bench llama-batched-bench llama-perplexity > "$place/build.log"
}

# Whether the build FOLDER gets through prompts of MODEL, three times: lost tiles are a matter of chance.
survives() {
    local try
    for try in 1 2 3; do
        "$place/$1/bin/llama-bench" -m "$2" -t 2 -r 1 -p 512 -n 0 > /dev/null 2>&1 || return 1
    done
}

[ $# -ge 1 ] || { sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 64; }
folder=build
[ -x "$place/build/bin/llama-perplexity" ] && [ "$1" != build ] || build build
[ "$1" != build ] || exit 0
model=$1
shift
if grep -qw amx_tile /proc/cpuinfo && ! survives build "$model"; then
    echo "llama.cpp dies on a prompt with AMX here: measured without it" >&2
    folder=build-without-amx
    [ -x "$place/$folder/bin/llama-perplexity" ] || build $folder -mno-amx-tile -mno-amx-int8 -mno-amx-bf16
    survives $folder "$model" || { echo "llama.cpp dies without AMX too: not measured" >&2; exit 1; }
fi
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
exec python3 "$tree/tests/bench/cpu_vs_llamacpp.py" --llama "$place/$folder/bin" ${options[@]+"${options[@]}"} "${files[@]}"
