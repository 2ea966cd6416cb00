"""Helps the tests of the lints: a small tree with planted violations, thrown away afterwards."""
import os
import tempfile
import unittest


class PlantedTree(unittest.TestCase):
    """`self.plant({path: text})` makes the tree; `self.rules(check)` tells which rules fired."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-lint-")
        self.addCleanup(self.folder.cleanup)
        self.root = self.folder.name

    def plant(self, files):
        for path, text in files.items():
            full = os.path.join(self.root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)

    def found(self, check):
        return sorted((f.path, f.rule) for f in check(self.root))

    def rules(self, check):
        return sorted({f.rule for f in check(self.root)})
