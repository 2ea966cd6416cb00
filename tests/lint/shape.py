#!/usr/bin/env python3
"""Sizes, banned calls, mirrored tests, listed events: the rules of the house that a program can judge.

usage: shape.py [ROOT]
"""
import ast
import os
import re
import sys

import c_source
from c_source import Finding

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 700
PARAMETERS_MAX = 6
FILE_BYTES_MAX = 1000000

# Call -> (reason, files that may use it all the same). A trailing slash means a whole folder.
BANNED_CALLS = {
    "strcpy": ("unbounded", ()),
    "strcat": ("unbounded", ()),
    "strncpy": ("may leave no terminator", ()),
    "sprintf": ("unbounded", ()),
    "vsprintf": ("unbounded", ()),
    "gets": ("unbounded", ()),
    "scanf": ("unbounded", ()),
    "sscanf": ("overflow is undefined", ()),
    "alloca": ("unbounded stack", ()),
    "atoi": ("hides errors", ()),
    "atol": ("hides errors", ()),
    "atof": ("hides errors", ()),
    "system": ("runs a shell", ()),
    "popen": ("runs a shell", ()),
    "strtok": ("hidden state", ()),
    "rand": ("randomness is an argument", ()),
    "srand": ("randomness is an argument", ()),
    "assert": ("CHECK stays on", ()),
    "abort": ("check_failed() decides", ("common/check.c", "tests/")),
    "sleep": ("never wait for a peer by sleeping", ()),
    "usleep": ("never wait for a peer by sleeping", ("tests/",)),
    "gettimeofday": ("steps backwards", ()),
    "time": ("steps backwards", ()),
    "clock_gettime": ("clock_now_ns() reads the clock", ("common/clock.c", "tests/")),
    "pthread_cancel": ("leaves locks behind", ()),
    "setjmp": ("control flow", ("tests/",)),
    "longjmp": ("control flow", ("tests/",)),
    "exit": ("only main leaves", ("common/check.c", "tests/", "/main.c", "client/cli/")),
    "_exit": ("only main leaves", ("common/check.c", "tests/", "/main.c",
                                   "worker/fault_points_armed.c", "worker/heartbeat.c",
                                   "worker/engine.c")),
}
BANNED_WORDS = {
    "CLOCK_REALTIME": "steps backwards; use clock_now_ns()",
}

# Modules without a unit test of their own -> the test that runs them; a key stands for every module whose path
# begins with it, the longest key counts. Ports and what only a process has are tried with real processes, parts of
# the core with the whole core, kernels on every backend by one case table.
COVERED_ELSEWHERE = {
    "client/cli/": "tests/integration/cli_test.py",
    "coordinator/attach_port": "tests/integration/attach_test.py",
    "coordinator/main": "tests/integration/start_test.py",
    "coordinator/plan_writer": "tests/sim/core_sim.c",
    "coordinator/scheduler": "tests/sim/core_sim.c",
    "coordinator/served_model": "tests/integration/start_test.py",
    "coordinator/service": "tests/integration/restart_test.py",
    "coordinator/tokenizer_pool": "tests/integration/load_test.py",
    "coordinator/worker_port": "tests/integration/restart_test.py",
    "coordinator/worker_process": "tests/integration/attach_test.py",
    "coordinator/worker_state": "tests/sim/core_sim.c",
    "kernels/cpu/": "tests/kernels/operations_test.c",
    "kernels/cpu/attention": "tests/kernels/attention_test.c",
    "kernels/cpu/kv_write": "tests/kernels/pool_test.c",
    "kernels/cpu/matmul": "tests/kernels/matmul_test.c",
    "kernels/cpu/memory": "tests/kernels/pool_test.c",
    "kernels/cpu/sample": "tests/kernels/sample_test.c",
    "kernels/cuda/": "tests/gpu/kernels_test.cu",
    "worker/attach": "tests/integration/attach_test.py",
    "worker/config": "tests/integration/start_test.py",
    "worker/coordinator_port": "tests/integration/restart_test.py",
    "worker/engine": "tests/integration/start_test.py",
    "worker/fault_points": "tests/integration/restart_test.py",
    "worker/heartbeat": "tests/integration/restart_test.py",
    "worker/layers": "tests/unit/worker/forward_test.c",
    "worker/main": "tests/integration/start_test.py",
    "worker/service": "tests/integration/restart_test.py",
}

TREE_FOLDERS = {"common", "proto", "kernels", "kernels/cpu", "kernels/cuda", "coordinator",
                "coordinator/tokenizer", "worker", "client", "client/cli"}

SECRETS_OF_THE_PLACE = [
    (re.compile(r"(^|[^A-Za-z0-9_.])/(wo" r"rk|fa" r"rm)/"), "a path of one machine"),
    (re.compile(r"/tmp/tandem" r"/"), "a path of one machine"),
    (re.compile(r"pythonho" r"sted|pypi\.o" r"rg|deb\.debian\.o" r"rg"), "a registry host"),
]
OPEN_ENDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
EMPTY_TESTS = re.compile(r"\bskip\(\)|\bGTEST_SKIP|\bDISABLED_|if *\(0\)|assert_true\(1\)")
TEXT_SUFFIXES = c_source.C_SUFFIXES + (".py", ".sh", ".md", ".txt", ".conf", ".service", ".json",
                                       ".cmake", ".yml", ".tmpl")


def allowed(path, exceptions):
    return any(path.startswith(e) if e.endswith("/") and not e.startswith("/") else path.endswith(e)
               for e in exceptions)


def check_c_sizes(path, text):
    if c_source.is_generated(text):
        return
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield Finding(path, lines, "file_lines", f"{lines} lines, at most {FILE_LINES_MAX}")
    for function in c_source.functions(text):
        if function.lines > FUNCTION_LINES_MAX:
            yield Finding(path, function.first_line, "function_lines",
                          f"{function.name} has {function.lines} lines, at most {FUNCTION_LINES_MAX}")
        if function.parameters > PARAMETERS_MAX:
            yield Finding(path, function.first_line, "parameters",
                          f"{function.name} has {function.parameters}, at most {PARAMETERS_MAX}")


def check_python_sizes(path, text):
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        yield Finding(path, lines, "file_lines", f"{lines} lines, at most {FILE_LINES_MAX}")
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        length = node.end_lineno - node.lineno + 1
        if length > FUNCTION_LINES_MAX:
            yield Finding(path, node.lineno, "function_lines",
                          f"{node.name} has {length} lines, at most {FUNCTION_LINES_MAX}")
        count = len(node.args.args) + len(node.args.kwonlyargs)
        if count > PARAMETERS_MAX:
            yield Finding(path, node.lineno, "parameters",
                          f"{node.name} has {count}, at most {PARAMETERS_MAX}")


CALL = re.compile(r"(?<![\w.>])(\w+)\s*\(")
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n]*\\\n)*[^\n]*)", re.MULTILINE)


def check_calls(path, text):
    stripped = c_source.strip(text)
    for match in CALL.finditer(stripped):
        reason, exceptions = BANNED_CALLS.get(match.group(1), (None, ()))
        if reason is not None and not allowed(path, exceptions):
            yield Finding(path, c_source.line_of(stripped, match.start()), "banned_call",
                          f"{match.group(1)}: {reason}")
    for word, reason in BANNED_WORDS.items():
        for match in re.finditer(r"\b" + word + r"\b", stripped):
            yield Finding(path, c_source.line_of(stripped, match.start()), "banned_call",
                          f"{word}: {reason}")
    for match in MACRO.finditer(stripped):
        if re.search(r"\b(return|goto|break|continue)\b", match.group(2)):
            yield Finding(path, c_source.line_of(stripped, match.start()), "macro_control_flow",
                          f"{match.group(1)} hides control flow")


def check_text(path, text):
    for number, line in enumerate(text.split("\n"), 1):
        for pattern, what in SECRETS_OF_THE_PLACE:
            if pattern.search(line):
                yield Finding(path, number, "place", f"{what} in a file of the project")
        if OPEN_ENDS.search(line):
            yield Finding(path, number, "open_end", "finish it or say why it stays out")
        if path.startswith("tests/") and path.endswith(".c") and EMPTY_TESTS.search(line):
            yield Finding(path, number, "empty_test", "a test that cannot fail")


def check_mirror(root):
    """tests/unit mirrors the sources, both ways."""
    files = c_source.c_files(root)
    tests = {p for p in files if p.startswith("tests/unit/") and p.endswith("_test.c")}
    modules = {os.path.splitext(p)[0] for p in files if p.split("/")[0] in c_source.PRODUCT_FOLDERS}
    for test in sorted(tests):
        module = test[len("tests/unit/"):-len("_test.c")]
        if not any(m == module or module.startswith(m + "_") for m in modules):
            yield Finding(test, 1, "mirror", f"there is no {module}.c or {module}.h")
    covered = {t[len("tests/unit/"):-len("_test.c")] for t in tests}
    for path in files:
        module = os.path.splitext(path)[0]
        if not path.endswith((".c", ".cu")) or path.split("/")[0] not in c_source.PRODUCT_FOLDERS:
            continue
        # A part of a module that has no header of its own is tried with the module.
        part = module + ".h" not in files
        if any(c == module or c.startswith(module + "_") or part and module.startswith(c + "_")
               for c in covered):
            continue
        keys = [key for key in COVERED_ELSEWHERE if module.startswith(key)]
        elsewhere = COVERED_ELSEWHERE[max(keys, key=len)] if keys else None
        if elsewhere is None or not os.path.exists(os.path.join(root, elsewhere)):
            yield Finding(path, 1, "mirror", f"no tests/unit/{module}_test.c and no test named "
                                             "for it in COVERED_ELSEWHERE")
    for key in sorted(COVERED_ELSEWHERE):
        if not any(module.startswith(key) for module in modules):
            yield Finding(key, 1, "mirror", "COVERED_ELSEWHERE names what is not there")


# log_warn("event", ...), and with a level: log_line(LEVEL, "event", ...), outbox_log(outbox, LEVEL, "event", ...).
LOG_CALL = re.compile(r"\blog_(?P<level>error|warn|info|debug)\s*\(\s*(?P<event>\"[^\"]*\"|[^\s,]+)"
                      r"|\b(?:log_line|log_at|outbox_log|write_line)\s*\((?P<arguments>[^;]*)")
# They define these functions, or hand on the lines of the core.
LOG_RELAYS = ("common/log.h", "common/log.c", "coordinator/outbox.h", "coordinator/outbox.c",
              "coordinator/service.c")


def event_of(match):
    """(level, event) of a call as they are written; (None, None) for a relay."""
    if match.group("event"):
        return match.group("level"), match.group("event")
    named = re.search(r"LOG_LEVEL_(\w+)\s*,\s*(\"[^\"]*\"|[^\s,]+)", match.group("arguments"))
    return (named.group(1).lower(), named.group(2)) if named else (None, None)


def logged_events(root):
    """{(event, level): (path, line)} of all product code; findings for names that are no literal."""
    events, findings = {}, []
    for path in c_source.product_files(root):
        text = c_source.strip(c_source.read(root, path), keep_strings=True)
        for match in LOG_CALL.finditer(text):
            level, name = event_of(match)
            line = c_source.line_of(text, match.start())
            if name is not None and re.fullmatch(r'"[a-z][a-z0-9_]*"', name):
                events.setdefault((name.strip('"'), level), (path, line))
            elif path not in LOG_RELAYS:
                findings.append(Finding(path, line, "event_name", f"{name} is not a fixed name"))
    return events, findings


def check_events(root):
    """Each event that the code logs has a row with its level in docs/OPERATIONS.md, and each row an event."""
    events, findings = logged_events(root)
    document = "docs/OPERATIONS.md"
    text = c_source.read(root, document) if os.path.exists(os.path.join(root, document)) else ""
    section = re.search(r"^## Log events\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    listed = set(re.findall(r"^\| `([a-z0-9_]+)` \| (\w+)", section.group(1) if section else "",
                            re.MULTILINE))
    for (event, level), (path, line) in sorted(events.items()):
        if (event, level) not in listed:
            findings.append(Finding(path, line, "event_unlisted",
                                    f"{event} ({level}) has no row in {document}"))
    for event, level in sorted(listed - set(events)):
        findings.append(Finding(document, 1, "event_unknown", f"nothing logs {event} as {level}"))
    return findings


def check_tree(root):
    """docs/ARCHITECTURE.md has a line for each module of the product and for nothing else. A line `name` also stands
    for name_*.c where those have no header of their own (name_avx2.c, name_plain.c)."""
    document = "docs/ARCHITECTURE.md"
    text = c_source.read(root, document) if os.path.exists(os.path.join(root, document)) else ""
    listed, folder = set(), None
    for line in text.split("\n"):
        head = re.match(r"([a-z][a-z_/]*)/( |$)", line)
        entry = re.match(r"  ([a-z][a-z0-9_]*) +\S", line)
        folder = head.group(1) if head else folder if entry else None
        if entry and folder in TREE_FOLDERS:
            listed.add(f"{folder}/{entry.group(1)}")
    paths = c_source.product_files(root)
    modules = {os.path.splitext(path)[0] for path in paths}
    for module in sorted(listed - modules):
        if not any(m.startswith(module + "_") for m in modules):
            yield Finding(document, 1, "tree", f"there is no {module}")
    for module in sorted(modules - listed):
        parts = module.split("_")
        kin = any("_".join(parts[:n]) in listed for n in range(1, len(parts)))
        if not kin or module + ".h" in paths:
            yield Finding(document, 1, "tree", f"{module} has no line in the tree")


DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Z][A-Z0-9_]+)[ \t]+[^\s(]", re.MULTILINE)
ENUMERATED = re.compile(r"\benum\b[^{};()]*\{([^}]*)\}")


def constants(text):
    """Names of the constants that a file defines, with their lines."""
    stripped = c_source.strip(text)
    for match in DEFINED.finditer(stripped):
        yield match.group(1), c_source.line_of(stripped, match.start())
    for body in ENUMERATED.finditer(c_source.without_directives(stripped)):
        for match in re.finditer(r"(?:^|,)\s*([A-Z][A-Z0-9_]+)\s*=", body.group(1)):
            yield match.group(1), c_source.line_of(stripped, body.start(1) + match.start(1))


def check_constants(root):
    """A constant with one name has one home. Constants that are private to two .c files may share a
    name; one that a header defines may not be defined again."""
    homes, findings = {}, []
    for path in c_source.product_files(root):
        for name, line in constants(c_source.read(root, path)):
            homes.setdefault(name, []).append((path, line))
    for name, places in sorted(homes.items()):
        files = {path for path, _ in places}
        if len(files) > 1 and any(path.endswith((".h", ".cuh")) for path in files):
            path, line = places[-1]
            findings.append(Finding(path, line, "constant_twice",
                                    f"{name} is also defined in {places[0][0]}"))
    return findings


def check_files(root):
    findings = []
    for path in c_source.all_files(root):
        if os.path.getsize(os.path.join(root, path)) > FILE_BYTES_MAX:
            findings.append(Finding(path, 1, "file_bytes", f"more than {FILE_BYTES_MAX} bytes"))
        name = os.path.basename(path)
        if not path.endswith(TEXT_SUFFIXES) and "." in name.lstrip("."):
            continue
        text = c_source.read(root, path)
        findings += check_text(path, text)
        if re.match(r"util(s|ities)?\.", name):
            findings.append(Finding(path, 1, "file_name", "a name that says why the file is there"))
        if path.endswith(c_source.C_SUFFIXES):
            findings += check_c_sizes(path, text)
            findings += check_calls(path, text)
        elif path.endswith(".py"):
            findings += check_python_sizes(path, text)
        elif path.endswith(".sh") and text.count("\n") > FILE_LINES_MAX:
            findings.append(Finding(path, 1, "file_lines", f"at most {FILE_LINES_MAX}"))
    return findings


def check(root):
    return (check_files(root) + list(check_mirror(root)) + list(check_tree(root))
            + check_events(root) + check_constants(root))


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.getcwd()
    return c_source.report(check(root), f"shape of {len(c_source.all_files(root))} files")


if __name__ == "__main__":
    sys.exit(main())
