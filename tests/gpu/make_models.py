#!/usr/bin/env python3
"""Makes the models of the device tests as GGUF: random weights, a real tokenizer. Needs numpy.

usage: make_models.py TOKENIZER.gguf FOLDER NAME...   NAME: small, llama-1b, smollm2-135m
TOKENIZER.gguf: a model whose tokenizer is copied; its header is enough.
"""
import os
import sys

import numpy

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import make_model

make_model.VARIANTS.update({
    "small": dict(layers=2, width=256, ffn=512, heads=4, kv_heads=2, head_dim=64, type="BF16"),
    "llama-1b": dict(layers=16, width=2048, ffn=8192, heads=32, kv_heads=8, head_dim=64, type="BF16",
                     context=131072),
    "smollm2-135m": dict(layers=30, width=576, ffn=1536, heads=9, kv_heads=3, head_dim=64, type="Q4_1"),
})
LLAMA_ROWS = 128256  # of the embedding; the tokenizer has fewer


def tensor_bytes(generator, kind, extents, scale):
    count = extents[0] * (extents[1] if len(extents) > 1 else 1)
    draw = numpy.random.default_rng(generator.getrandbits(32))
    if kind == "NORM":
        return (1 + draw.uniform(-scale, scale, count)).astype("<f4").tobytes()
    if kind == "Q4_1":
        blocks = numpy.frombuffer(draw.bytes(count // 32 * 20), "<u1").reshape(-1, 20).copy()
        blocks[:, :4] = numpy.array([scale / 4.6, -7.5 * scale / 4.6], "<f2").view("<u1")
        return blocks.tobytes()
    values = (draw.random(count, dtype=numpy.float32) - 0.5) * (2 * 3 ** 0.5 * scale)
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


def main():
    tokenizer, folder, *names = sys.argv[1:]
    make_model.tensor_bytes = tensor_bytes
    records, count, tokens = make_model.read_vocabulary(tokenizer)
    os.makedirs(folder, exist_ok=True)
    for name in names:
        rows = LLAMA_ROWS if name == "llama-1b" else tokens
        make_model.make(os.path.join(folder, name + ".gguf"), name, (records, count, rows))


if __name__ == "__main__":
    main()
