#!/usr/bin/env python3
"""Includes go one way, never in a circle, and the pure parts of the engine stay pure.

usage: layers.py [ROOT]
"""
import os
import sys

import c_source
from c_source import Finding

# Folder -> the folders that its files may include. The longest matching folder decides.
MAY_INCLUDE = {
    "common": {"common"},
    "proto": {"proto", "common"},
    "kernels": {"kernels", "common"},
    "kernels/cpu": {"kernels/cpu", "kernels", "common"},
    "kernels/cuda": {"kernels/cuda", "kernels", "common"},
    "coordinator": {"coordinator", "coordinator/tokenizer", "proto", "common"},
    "coordinator/tokenizer": {"coordinator/tokenizer", "proto", "common"},
    "worker": {"worker", "kernels", "proto", "common"},
    "client": {"client", "proto", "common"},
    "client/cli": {"client/cli", "client", "proto", "common"},
}

# The one file that knows every backend, to open the one that was asked for.
CHOOSER = "kernels/backend.c"

# The core sees time, chance and messages as arguments: coordinator/core*.c, every module that it includes, and
# the tokenizer. What is reached from there may use only these headers of the system.
PURE_SYSTEM_HEADERS = {"stdalign.h", "stdatomic.h", "stdbool.h", "stddef.h", "stdint.h",
                       "stdlib.h", "string.h", "inttypes.h", "limits.h", "math.h", "float.h",
                       "errno.h", "stdarg.h", "assert.h", "xxhash.h"}
IMPURE_COMMON = {"common/clock.h", "common/event_loop.h", "common/notify.h", "common/options.h",
                 "common/shm.h"}

# System header prefix -> folders that may include it.
OWNERS_OF_LIBRARIES = {
    "nng/": ("coordinator", "worker", "client", "tests"),
    "msgpack": ("proto", "tests"),
    "jansson": ("common", "client/cli", "tests"),
    "ini.h": ("common", "tests"),
    "cuda": ("kernels/cuda", "tests"),
    "cublas": ("kernels/cuda", "tests"),
    "immintrin": ("kernels/cpu", "tests"),
}


def folder_of(path, table):
    """The longest folder of `table` that holds `path`, or None."""
    folder = os.path.dirname(path)
    while folder and folder not in table:
        folder = os.path.dirname(folder)
    return folder or None


def module_of(path):
    return os.path.splitext(path)[0]


def core_modules(root):
    """Modules of the coordinator that coordinator/core*.c reaches through includes, and the tokenizer's."""
    included, found = {}, set()
    for path in c_source.product_files(root):
        if path.startswith("coordinator/"):
            targets = {module_of(t) for _, is_project, t in
                       c_source.includes(c_source.read(root, path)) if is_project}
            included.setdefault(module_of(path), set()).update(targets)
    waiting = [m for m in included if m.startswith("coordinator/tokenizer/")
               or m == "coordinator/core" or m.startswith("coordinator/core_")]
    while waiting:
        module = waiting.pop()
        if module in included and module not in found:
            found.add(module)
            waiting += included[module]
    return found


def check_project_include(root, path, line, target):
    """Direction of one include, and that it can be found."""
    if not os.path.isfile(os.path.join(root, target)):
        yield Finding(path, line, "unresolved", f'"{target}" is not a path from the root')
        return
    home, away = folder_of(path, MAY_INCLUDE), folder_of(target, MAY_INCLUDE)
    if path == CHOOSER and away.startswith(home):
        return
    if home is not None and away not in MAY_INCLUDE[home]:
        yield Finding(path, line, "direction", f"{home} may not include {target}")
    if path == "client/tandem.h":
        yield Finding(path, line, "public_header", "an installed header stands alone")


def check_system_include(path, line, target):
    for prefix, owners in OWNERS_OF_LIBRARIES.items():
        if target.startswith(prefix) and not path.startswith(tuple(o + "/" for o in owners)):
            yield Finding(path, line, "library", f"<{target}> belongs to {', '.join(owners)}")


def check_core_include(path, line, is_project, target):
    if target in IMPURE_COMMON if is_project else target not in PURE_SYSTEM_HEADERS:
        yield Finding(path, line, "core", f"the core may not include {target}")


def check_order(path, listed):
    """A .c includes its own header first, so that each header is proved to compile alone."""
    own = os.path.splitext(path)[0] + ".h"
    targets = [target for _, is_project, target in listed if is_project]
    if own in targets and targets[0] != own:
        yield Finding(path, listed[0][0], "own_header_first", f'"{own}" comes first')


def circles(graph):
    """Circles of a graph {node: set of nodes}, each once, as lists of nodes."""
    done, found = set(), []
    for origin in sorted(graph):
        trail, stack = [], [(origin, iter(sorted(graph[origin])))]
        if origin in done:
            continue
        trail.append(origin)
        while stack:
            node, rest = stack[-1]
            step = next(rest, None)
            if step is None:
                stack.pop()
                trail.pop()
                done.add(node)
            elif step in trail:
                found.append(trail[trail.index(step):] + [step])
            elif step not in done:
                trail.append(step)
                stack.append((step, iter(sorted(graph.get(step, ())))))
    return found


def check(root):
    findings, modules, headers, core = [], {}, {}, core_modules(root)
    for path in c_source.product_files(root):
        listed = c_source.includes(c_source.read(root, path))
        findings += check_order(path, listed)
        for line, is_project, target in listed:
            if module_of(path) in core:
                findings += check_core_include(path, line, is_project, target)
            if not is_project:
                findings += check_system_include(path, line, target)
                continue
            findings += check_project_include(root, path, line, target)
            if module_of(target) != module_of(path) and path != CHOOSER:
                modules.setdefault(module_of(path), set()).add(module_of(target))
            if path.endswith((".h", ".cuh")):
                headers.setdefault(path, set()).add(target)
    for graph, what in ((headers, "headers"), (modules, "modules")):
        for circle in circles(graph):
            findings.append(Finding(circle[0], 1, "circle", f"{what}: " + " -> ".join(circle)))
    return findings


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.getcwd()
    files = len(c_source.product_files(root))
    return c_source.report(check(root), f"layers of {files} files")


if __name__ == "__main__":
    sys.exit(main())
