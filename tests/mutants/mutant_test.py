#!/usr/bin/env python3
"""The lists of mutants are read exactly: what does not apply, or is not understood, is told."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lint"))

import mutant
from planted import PlantedTree

GOOD = ("# a comment\nmutant: one\nfile: common/a.c\nreplace:\n<<<\n    x = 1;\n    y = 2;\n>>>\nwith:\n"
        "<<<\n    x = 2;\n>>>\ntest: unit.common.a_test\n\n")


class MutantTest(PlantedTree):
    def read(self, text, source="    x = 1;\n    y = 2;\n"):
        self.plant({"m/list.txt": text, "common/a.c": source})
        return mutant.read_all(os.path.join(self.root, "m"))

    def test_several_are_read(self):
        second = GOOD.replace("one", "two").replace("    x = 2;\n", "")
        mutants, troubles = self.read(GOOD + second)
        self.assertEqual([(m.name, m.new, m.test) for m in mutants],
                         [("one", "    x = 2;", "unit.common.a_test"),
                          ("two", "", "unit.common.a_test")])
        self.assertEqual(troubles, [])
        self.assertEqual([m.trouble(self.root) for m in mutants], [None, None])

    def test_apply_changes_only_the_old_text(self):
        mutants, _ = self.read(GOOD, "before\n    x = 1;\n    y = 2;\nafter\n")
        before = mutants[0].apply(self.root)
        with open(os.path.join(self.root, "common/a.c"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "before\n    x = 2;\nafter\n")
        self.assertEqual(before, "before\n    x = 1;\n    y = 2;\nafter\n")

    def test_text_that_is_gone_or_twice(self):
        mutants, _ = self.read(GOOD, "x = 3;\n")
        self.assertIn("stands 0 times", mutants[0].trouble(self.root))
        mutants, _ = self.read(GOOD, "    x = 1;\n    y = 2;\n" * 2)
        self.assertIn("stands 2 times", mutants[0].trouble(self.root))

    def test_missing_file_and_no_change(self):
        mutants, _ = self.read(GOOD.replace("common/a.c", "common/b.c"))
        self.assertIn("there is no common/b.c", mutants[0].trouble(self.root))
        mutants, _ = self.read(GOOD.replace("    x = 2;", "    x = 1;\n    y = 2;"))
        self.assertEqual(mutants[0].trouble(self.root), "it changes nothing")

    def test_stray_text_and_equal_names(self):
        _, troubles = self.read(GOOD + GOOD + "mutnat: misspelt\n")
        self.assertEqual(len(troubles), 2)
        self.assertIn("not understood: mutnat: misspelt", troubles[0])
        self.assertIn("two mutants are called: one", troubles[1])


if __name__ == "__main__":
    unittest.main()
