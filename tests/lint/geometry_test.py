#!/usr/bin/env python3
"""geometry.py finds copies of formulas and constants of the KV geometry."""
import unittest

import geometry
from planted import PlantedTree

HOME = "uint32_t kv_dim(const struct kv_geometry *g)\n{\n    return g->kv_heads * g->head_dim;\n}\n"

VIOLATIONS = [
    ("arithmetic", "x = position / g->block_tokens;"),
    ("arithmetic", "x = position % plan->geometry.block_tokens;"),
    ("arithmetic", "x = g->block_tokens * 4;"),
    ("arithmetic", "x = (uint64_t)block_tokens * head_dim;"),
    ("arithmetic", "x = dim * block_tokens + token;"),
    ("arithmetic", "x = (slot * layers + layer) * logical_blocks + logical;"),
    ("arithmetic", "x = logical_blocks * (slot * layers + layer) + logical;"),
    ("arithmetic", "x = (size_t)slots * g->layers * view->logical_blocks;"),
    ("arithmetic", "x = block * kv_block_bytes(g);"),
    ("arithmetic", "x = block *\n    kv_v_offset(&pool->geometry);"),
    ("arithmetic", "x *= block_tokens;"),
    ("arithmetic", "x = position >> block_tokens;"),
    ("arithmetic", "x = g->kv_heads * g->head_dim;"),
    ("arithmetic", "x = head_dim * (uint64_t)1 * shape->kv_heads;"),
    ("alias", "uint32_t n = g->block_tokens;"),
    ("alias", "const uint32_t width = extents.logical_blocks;"),
    ("constant", "enum { BLOCK_TOKENS = 16 };"),
    ("constant", "#define KV_BLOCK_BYTES 32768"),
    ("constant", "enum { MODEL_HEAD_DIM = 64 };"),
    ("constant", "uint32_t kv_dim(const struct kv_geometry *g)\n{\n    return 512;\n}"),
]

ACCEPTED = [
    "shape->block_tokens = options->block_tokens;",
    "uint32_t block_tokens = g->block_tokens;",
    "for (uint32_t t = 0; t < g->block_tokens; t++) { }",
    "if (g->block_tokens != 16) { }",
    "text_format(why, \"%u\", g->block_tokens);",
    "x = heads * head_dim;",
    "x = g->head_dim * 2;",
    "CHECK(g->block_tokens % LANES == 0);",
    "if (config->block_tokens % 8 != 0) { }",
    "row = k + token * kv_dim(g);",
    "const uint32_t *block_tokens;",
    "held += row->logical_blocks * layers;",
    "float *v = pool + kv_v_head_offset(g, block, head);",
    "/* token * block_tokens */",
    "uint64_t pool_bytes = kv_block_bytes(g) + padding;",
    "enum { LIMIT_HEAD_DIM = 256 };",
    "blocks = kv_blocks_for(g, position + 1);",
]


class GeometryTest(PlantedTree):
    # S8: the article's constants stood in two files, and drift between them is silent corruption.
    def test_s8_each_copy_is_found(self):
        for rule, code in VIOLATIONS:
            self.plant({geometry.HOME: HOME, "worker/a.c": code + "\n"})
            self.assertEqual(self.rules(geometry.check), [rule], code)

    def test_uses_without_arithmetic_are_accepted(self):
        for code in ACCEPTED:
            self.plant({geometry.HOME: HOME, "worker/a.c": code + "\n"})
            self.assertEqual(self.found(geometry.check), [], code)

    def test_the_home_itself_is_free(self):
        self.plant({geometry.HOME: HOME + "int BLOCK_TOKENS = 16;\n"})
        self.assertEqual(self.found(geometry.check), [])


if __name__ == "__main__":
    unittest.main()
