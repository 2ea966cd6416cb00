#!/usr/bin/env python3
"""headers.py finds a header that needs another one before it. Argument one: the compiler."""
import sys
import unittest

import headers
from planted import PlantedTree

COMPILER = sys.argv.pop(1) if len(sys.argv) > 1 else "cc"


class HeadersTest(PlantedTree):
    def check(self):
        return self.rules(lambda root: headers.check(root, COMPILER))

    def test_header_that_stands_alone(self):
        self.plant({"common/a.h": "#ifndef A\n#define A\n#include <stdint.h>\nuint8_t f(void);\n"
                                  "#endif\n"})
        self.assertEqual(self.check(), [])

    def test_missing_include_is_found(self):
        self.plant({"common/a.h": "#ifndef A\n#define A\nuint8_t f(void);\n#endif\n"})
        self.assertEqual(self.check(), ["header_alone"])

    def test_missing_guard_is_found(self):
        self.plant({"common/a.h": "struct a {\n    int b;\n};\n"})
        self.assertEqual(self.check(), ["header_alone"])


if __name__ == "__main__":
    unittest.main()
