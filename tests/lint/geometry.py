#!/usr/bin/env python3
"""A constant or an index formula of the KV geometry stands once: in common/geometry.h.

Everywhere else three things are forbidden:
  arithmetic  a multiplication, division, remainder or shift with a quantity of the geometry
              (block_tokens, block_bytes, v_offset): there is a function for it; kv_heads x head_dim in one product
              is kv_dim(); logical_blocks as the last factor, or a factor of a sum, is the law of
              the block table (as the first factor it counts blocks)
  alias       a geometry quantity copied to a variable of another name, which would hide arithmetic
  constant    an enum constant or macro for one of them, or a second definition of a kv_ function

usage: geometry.py [ROOT]
"""
import os
import re
import sys

import c_source
from c_source import Finding

HOME = "common/geometry.h"
QUANTITIES = r"(?:kv_)?(?:block_tokens|block_bytes|v_offset|head_elements)"
# The operand with its path: `view->geometry.block_tokens`, `kv_block_bytes(g)`.
OPERAND = rf"(?:\(\s*\w+\s*\)\s*)?(?:\w+(?:\[[^\]]*\])?(?:->|\.))*\b{QUANTITIES}\b(?:\s*\([^()]*\))?"
OPERATOR = r"(?:\*|/|%|<<|>>)=?"
BEFORE = re.compile(rf"(?P<left>[\w)\]])\s*{OPERATOR}\s*{OPERAND}")
AFTER = re.compile(rf"{OPERAND}\s*\)*\s*{OPERATOR}\s*[\w(]")
FACTORS = r"[\w\s>.()\-]*\*[\w\s>.()*\-]*"
KV_DIM = re.compile(rf"\bkv_heads\b{FACTORS}\bhead_dim\b|\bhead_dim\b{FACTORS}\bkv_heads\b")
ALIAS = re.compile(r"(?:\b[a-z]\w*\s+|[*&]\s*)(?P<name>\w+)\s*=\s*"
                   r"(?:\w+(?:->|\.))*(?P<quantity>block_tokens|logical_blocks)\s*[;,)]")
# A LIMIT_ bounds what a peer or a file may ask for; it is no dimension of a model.
CONSTANT = re.compile(r"\b(?!LIMIT_)(?:\w*_)?(?:BLOCK_TOKENS|BLOCK_BYTES|V_OFFSET|KV_DIM|HEAD_DIM)\b"
                      r"\s*(?:=|\s\(?\d)")
DEFINITION = re.compile(r"^[ \t]*#[ \t]*define[ \t]+", re.MULTILINE)
TABLE_LAW = re.compile(r"\*\s*(?:\w+(?:->|\.))*logical_blocks\b|\blogical_blocks\s*\*[^;,=]*\+(?!=)")
# `block_tokens % 8 == 0` judges a value and computes no place.
DIVISIBLE = re.compile(rf"{OPERAND}\s*%\s*\w+\s*[!=]=\s*0")
# `type *name` in a declaration looks like a product; a declared pointer of these names is none.
DECLARATION = re.compile(r"\b(?:const|struct\s+\w+|void|char|int|float|u?int\d+_t|size_t)\s*\*")


def arithmetic(stripped):
    """(offset, text) of each forbidden product, quotient, remainder or shift."""
    stripped = DIVISIBLE.sub(lambda match: " " * len(match.group(0)), stripped)
    for pattern in (BEFORE, AFTER, KV_DIM, TABLE_LAW):
        for match in pattern.finditer(stripped):
            line_start = stripped.rfind("\n", 0, match.start()) + 1
            before = stripped[line_start:match.end()]
            declared = DECLARATION.search(before)
            if declared is not None and declared.end() > match.start() - line_start:
                continue
            yield match.start(), " ".join(match.group(0).split())


def function_names(text):
    return {function.name for function in c_source.functions(text)}


def check_file(path, text, home_functions):
    stripped = c_source.strip(text)
    for offset, shown in arithmetic(stripped):
        yield Finding(path, c_source.line_of(stripped, offset), "arithmetic",
                      f"`{shown}`: use a function of {HOME}")
    for match in ALIAS.finditer(stripped):
        if match.group("name") != match.group("quantity"):
            yield Finding(path, c_source.line_of(stripped, match.start()), "alias",
                          f"{match.group('quantity')} under the name {match.group('name')}")
    for match in CONSTANT.finditer(stripped):
        yield Finding(path, c_source.line_of(stripped, match.start()), "constant",
                      f"`{' '.join(match.group(0).split())}`: constants of the geometry stand in "
                      + HOME)
    for name in sorted(function_names(text) & home_functions):
        yield Finding(path, 1, "constant", f"{name} is defined in {HOME}")


def check(root):
    home_functions = function_names(c_source.read(root, HOME))
    findings = []
    for path in c_source.product_files(root):
        if path != HOME:
            findings += check_file(path, c_source.read(root, path), home_functions)
    return findings


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else os.getcwd()
    return c_source.report(check(root), f"geometry in {len(c_source.product_files(root))} files")


if __name__ == "__main__":
    sys.exit(main())
