#!/usr/bin/env python3
"""layers.py finds every planted violation and accepts a clean tree."""
import unittest

import layers
from planted import PlantedTree


class LayersTest(PlantedTree):
    def test_clean_tree_passes(self):
        self.plant({"common/a.h": "#include <stdint.h>\n",
                    "proto/b.h": '#include "common/a.h"\n',
                    "coordinator/core.h": '#include "proto/b.h"\n',
                    "coordinator/core.c": '#include "coordinator/core.h"\n#include <string.h>\n',
                    "worker/c.c": '#include "proto/b.h"\n',
                    "client/d.c": '#include "proto/b.h"\n#include <nng/nng.h>\n'})
        self.assertEqual(self.found(layers.check), [])

    def test_each_forbidden_direction_is_found(self):
        folders = ("common", "proto", "kernels", "coordinator", "worker", "client")
        self.plant({f"{folder}/x.h": "" for folder in folders})
        allowed = {("proto", "common"), ("kernels", "common"), ("coordinator", "common"),
                   ("coordinator", "proto"), ("worker", "common"), ("worker", "proto"),
                   ("worker", "kernels"), ("client", "common"), ("client", "proto")}
        for home in folders:
            for away in folders:
                if home == away:
                    continue
                self.plant({f"{home}/y.c": f'#include "{away}/x.h"\n'})
                expected = [] if (home, away) in allowed else [(f"{home}/y.c", "direction")]
                self.assertEqual(self.found(layers.check), expected, (home, away))
                self.plant({f"{home}/y.c": ""})

    def test_backends_do_not_see_each_other(self):
        self.plant({"kernels/cpu/a.h": "", "kernels/cuda/b.cu": '#include "kernels/cpu/a.h"\n'})
        self.assertEqual(self.found(layers.check), [("kernels/cuda/b.cu", "direction")])

    def test_only_the_chooser_knows_a_backend(self):
        self.plant({"kernels/backend.h": "", "kernels/other.c": '#include "kernels/cpu/device.h"\n',
                    "kernels/cpu/device.h": '#include "kernels/backend.h"\n',
                    "kernels/backend.c": '#include "kernels/backend.h"\n'
                                         '#include "kernels/cpu/device.h"\n'})
        self.assertEqual(self.found(layers.check), [("kernels/other.c", "direction")])

    def test_tokenizer_does_not_see_the_core(self):
        self.plant({"coordinator/core.h": "",
                    "coordinator/tokenizer/bpe.c": '#include "coordinator/core.h"\n'})
        self.assertEqual(self.rules(layers.check), ["direction"])

    def test_include_in_a_comment_is_none(self):
        self.plant({"common/a.c": '// #include "worker/x.h"\n/* \n#include "worker/y.h"\n*/\n'})
        self.assertEqual(self.found(layers.check), [])

    def test_unresolved_path_is_found(self):
        self.plant({"common/a.h": "", "common/a.c": '#include "a.h"\n'})
        self.assertIn("unresolved", self.rules(layers.check))

    def test_circle_of_headers_is_found(self):
        self.plant({"proto/a.h": '#include "proto/b.h"\n', "proto/b.h": '#include "proto/c.h"\n',
                    "proto/c.h": '#include "proto/a.h"\n'})
        self.assertEqual(self.rules(layers.check), ["circle"])

    def test_circle_through_sources_is_found(self):
        self.plant({"proto/a.h": "", "proto/b.h": "", "proto/a.c": '#include "proto/b.h"\n',
                    "proto/b.c": '#include "proto/a.h"\n'})
        self.assertEqual(self.rules(layers.check), ["circle"])

    def test_core_without_system_calls(self):
        self.plant({"coordinator/core.h": "", "coordinator/queue.h": "", "common/clock.h": "",
                    "coordinator/core.c": '#include "coordinator/core.h"\n'
                                          '#include "coordinator/queue.h"\n',
                    "coordinator/queue.c": '#include "coordinator/queue.h"\n'
                                           '#include "common/clock.h"\n',
                    "coordinator/core_outbox.c": "#include <unistd.h>\n",
                    "coordinator/tokenizer/bpe.c": "#include <stdio.h>\n",
                    "coordinator/main.c": '#include "coordinator/core.h"\n#include <unistd.h>\n'})
        self.assertEqual(self.found(layers.check),
                         [("coordinator/core_outbox.c", "core"), ("coordinator/queue.c", "core"),
                          ("coordinator/tokenizer/bpe.c", "core")])

    def test_core_that_includes_a_port(self):
        self.plant({"coordinator/client_port.h": "#include <nng/nng.h>\n",
                    "coordinator/core.c": '#include "coordinator/client_port.h"\n'})
        self.assertEqual(self.found(layers.check), [("coordinator/client_port.h", "core")])

    def test_libraries_have_one_home(self):
        self.plant({"kernels/a.c": "#include <nng/nng.h>\n", "worker/b.c": "#include <msgpack.h>\n"})
        self.assertEqual(self.rules(layers.check), ["library"])

    def test_public_header_stands_alone(self):
        self.plant({"common/a.h": "", "client/tandem.h": '#include "common/a.h"\n'})
        self.assertEqual(self.rules(layers.check), ["public_header"])

    def test_own_header_comes_first(self):
        self.plant({"common/a.h": "", "common/b.h": "",
                    "common/b.c": '#include "common/a.h"\n#include "common/b.h"\n'})
        self.assertEqual(self.rules(layers.check), ["own_header_first"])


if __name__ == "__main__":
    unittest.main()
