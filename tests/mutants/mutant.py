"""Reads the lists of mutants: small wrong changes of our own code, each with the test that must notice.

    mutant: s14 takes a block for every token
    file: coordinator/blocks.c
    replace:
    <<<
    exact old text, once in the file
    >>>
    with:
    <<<
    exact new text
    >>>
    test: unit.coordinator.blocks_test
"""
import glob
import os
import re

MUTANT = re.compile(
    r"^mutant: (?P<name>[^\n]+)\nfile: (?P<file>[^\n]+)\n"
    r"replace:\n<<<\n(?P<old>.*?)\n>>>\nwith:\n<<<\n(?P<new>.*?)\n?>>>\ntest: (?P<test>[^\n]+)\n*",
    re.MULTILINE | re.DOTALL)


class Mutant:
    def __init__(self, source, match):
        self.source = source # the list that it stands in
        self.name, self.file = match["name"].strip(), match["file"].strip()
        self.old, self.new, self.test = match["old"], match["new"], match["test"].strip()

    def trouble(self, root):
        """Why the mutant does not apply to the tree at `root`, or None."""
        path = os.path.join(root, self.file)
        if not os.path.isfile(path):
            return f"there is no {self.file}"
        with open(path, encoding="utf-8") as file:
            count = file.read().count(self.old)
        if count != 1:
            return f"its old text stands {count} times in {self.file}"
        if self.old == self.new:
            return "it changes nothing"
        return None

    def apply(self, root):
        """Changes the file; returns its text from before."""
        path = os.path.join(root, self.file)
        with open(path, encoding="utf-8") as file:
            before = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(before.replace(self.old, self.new))
        return before


def read_list(path):
    """(mutants, troubles) of one list; what stands between mutants must be blank or a # line."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    mutants, rest = [], []
    end = 0
    for match in MUTANT.finditer(text):
        rest.append(text[end:match.start()])
        mutants.append(Mutant(os.path.basename(path), match))
        end = match.end()
    rest.append(text[end:])
    stray = [line for line in "".join(rest).split("\n") if line.strip() and line[0] != "#"]
    return mutants, [f"{os.path.basename(path)}: not understood: {line}" for line in stray[:3]]


def read_all(folder):
    mutants, troubles = [], []
    for path in sorted(glob.glob(os.path.join(folder, "*.txt"))):
        found, stray = read_list(path)
        mutants += found
        troubles += stray
    names = [m.name for m in mutants]
    troubles += [f"two mutants are called: {n}" for n in sorted({n for n in names if names.count(n) > 1})]
    return mutants, troubles
