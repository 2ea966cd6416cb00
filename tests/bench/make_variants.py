#!/usr/bin/env python3
"""Model files for the comparison with llama.cpp, in the types whose kernels differ.

usage: make_variants.py MODEL.gguf OUT_DIR [q4_0 q8_0 bf16 1b-q8_0 1b-bf16 ...]

q4_0, q4_1, q8_0, f16, bf16: the weights of MODEL.gguf, dequantized and rounded to that type, every matrix alike (the
embedding, which is the lm_head too, included). 1b-TYPE: random weights in the shape of Llama-3.2-1B, with MODEL's
tokenizer and as many unused tokens as fill the vocabulary. Needs the PyPI packages gguf and numpy. A file that is
there already stays.
"""
import os
import sys

import numpy
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

TYPES = {"q4_0": (GGMLQuantizationType.Q4_0, 2), "q4_1": (GGMLQuantizationType.Q4_1, 3),
         "q8_0": (GGMLQuantizationType.Q8_0, 7), "f16": (GGMLQuantizationType.F16, 1),
         "bf16": (GGMLQuantizationType.BF16, 32)}
LAYERS, WIDTH, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 16, 2048, 8192, 32, 8, 64, 128256
LARGE_KEYS = {"block_count": LAYERS, "embedding_length": WIDTH, "feed_forward_length": FFN,
              "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
              "rope.dimension_count": HEAD_DIM, "vocab_size": VOCABULARY, "context_length": 8192}
TOKEN_UNUSED = 5


def copy_keys(reader, writer, file_type, changed):
    """The keys of the source, some changed."""
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        short = key.removeprefix("llama.")
        if key == "general.file_type":
            writer.add_file_type(file_type)
        elif changed and short in LARGE_KEYS:
            writer.add_key_value(key, LARGE_KEYS[short], kind)
        elif kind == GGUFValueType.ARRAY:
            if changed and key == "tokenizer.ggml.tokens":
                value = value + [f"<unused_{i}>" for i in range(VOCABULARY - len(value))]
            elif changed and key == "tokenizer.ggml.token_type":
                value = list(value) + [TOKEN_UNUSED] * (VOCABULARY - len(value))
            writer.add_key_value(key, value, GGUFValueType.ARRAY, field.types[-1])
        else:
            writer.add_key_value(key, value, kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def requantize(source, path, name):
    kind, file_type = TYPES[name]
    reader, writer = GGUFReader(source), GGUFWriter(path, "llama")
    copy_keys(reader, writer, file_type, changed=False)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
    finish(writer)


def random_matrix(random, kind, rows, columns):
    """Random weights of about 1 / sqrt(columns): blocks of 32 with random digits, scale and minimum all the same, or
    the upper halves of normal floats."""
    if kind == GGMLQuantizationType.BF16:
        values = random.standard_normal((rows, columns), numpy.float32) / numpy.float32(columns ** 0.5)
        return (values.view(numpy.uint32) >> 16).astype(numpy.uint16).view(numpy.uint8)
    blocks = columns // 32
    eight = kind == GGMLQuantizationType.Q8_0
    scale = (0.014 if eight else 0.2) / columns ** 0.5
    parts = [numpy.full((rows, blocks, 1), scale, numpy.float16).view(numpy.uint8)]
    if kind == GGMLQuantizationType.Q4_1:
        parts.append(numpy.full((rows, blocks, 1), -1.5 / columns ** 0.5, numpy.float16).view(numpy.uint8))
    parts.append(random.integers(0, 256, (rows, blocks, 32 if eight else 16), numpy.uint8))
    return numpy.concatenate(parts, axis=2).reshape(rows, -1)


def make_large(source, path, name):
    kind, file_type = TYPES[name]
    random = numpy.random.default_rng(1)
    writer = GGUFWriter(path, "llama")
    copy_keys(GGUFReader(source), writer, file_type, changed=True)

    def add(tensor, rows, columns):
        writer.add_tensor(tensor, random_matrix(random, kind, rows, columns), raw_dtype=kind)

    def add_norm(tensor):
        writer.add_tensor(tensor, numpy.ones(WIDTH, numpy.float32))

    add("token_embd.weight", VOCABULARY, WIDTH)
    add_norm("output_norm.weight")
    for layer in range(LAYERS):
        add_norm(f"blk.{layer}.attn_norm.weight")
        add_norm(f"blk.{layer}.ffn_norm.weight")
        for tensor, rows, columns in (
                ("attn_q", HEADS * HEAD_DIM, WIDTH), ("attn_k", KV_HEADS * HEAD_DIM, WIDTH),
                ("attn_v", KV_HEADS * HEAD_DIM, WIDTH), ("attn_output", WIDTH, HEADS * HEAD_DIM),
                ("ffn_gate", FFN, WIDTH), ("ffn_up", FFN, WIDTH), ("ffn_down", WIDTH, FFN)):
            add(f"blk.{layer}.{tensor}.weight", rows, columns)
    finish(writer)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    source, folder = sys.argv[1:3]
    os.makedirs(folder, exist_ok=True)
    for name in sys.argv[3:]:
        kind = name.removeprefix("1b-")
        if kind not in TYPES or (kind != name and kind == "f16"):
            sys.exit(f"make_variants: {name} is none of {', '.join(TYPES)}, 1b-q4_0, 1b-q4_1, 1b-q8_0, 1b-bf16")
        path = os.path.join(folder, name + ".gguf")
        if not os.path.exists(path):
            (requantize if kind == name else make_large)(source, path + ".part", kind)
            os.rename(path + ".part", path)
        print(path)


if __name__ == "__main__":
    main()
