#!/usr/bin/env python3
"""Each header compiles alone, with the warnings of the build.

usage: headers.py ROOT COMPILER
"""
import concurrent.futures
import os
import subprocess
import sys

import c_source
from c_source import Finding

FLAGS = ["-std=c11", "-fsyntax-only", "-D_GNU_SOURCE", '-DTANDEM_VERSION="lint"', "-Wall", "-Wextra",
         "-Wpedantic", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Werror", "-x", "c"]
# As kernels/CMakeLists.txt compiles the sources that include them.
AVX2_FLAGS = ["-mavx2", "-mfma", "-mf16c"]
AVX512_FLAGS = AVX2_FLAGS + ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
AVX512_BF16_FLAGS = AVX512_FLAGS + ["-mavx512bf16"]
AMX_FLAGS = AVX512_FLAGS + ["-mamx-tile", "-mamx-int8"]
SET_FLAGS = {"_avx2.h": AVX2_FLAGS, "_avx512.h": AVX512_FLAGS, "_avx512_bf16.h": AVX512_BF16_FLAGS,
             "_amx.h": AMX_FLAGS}


def compile_alone(root, compiler, path):
    """Twice in one unit: the include guard is tried as well."""
    source = f'#include "{path}"\n#include "{path}"\nextern int not_empty;\n'
    flags = FLAGS + next((SET_FLAGS[end] for end in SET_FLAGS if path.endswith(end)), [])
    result = subprocess.run([compiler, *flags, "-I", root, "-"], input=source, text=True,
                            capture_output=True, check=False)
    if result.returncode == 0:
        return []
    reason = result.stderr.strip().split("\n")[0]
    return [Finding(path, 1, "header_alone", reason)]


def check(root, compiler):
    # What kernels/cuda includes comes with the CUDA toolkit; its compiler judges those headers.
    headers = [path for path in c_source.product_files(root)
               if path.endswith(".h") and not path.startswith("kernels/cuda/")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda path: compile_alone(root, compiler, path), headers)
    return [finding for findings in results for finding in findings]


def main():
    root, compiler = sys.argv[1], sys.argv[2]
    return c_source.report(check(root, compiler), "headers compiled alone")


if __name__ == "__main__":
    sys.exit(main())
