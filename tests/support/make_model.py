#!/usr/bin/env python3
"""Makes small llama models with seeded random weights and the real vocabulary, as GGUF; some without
the vocabulary, as Hugging Face directories with the weights of the GGUF of the same options.

The tokenizer's keys (and the chat template) are copied byte for byte from a real model, so that
both programs and all text of the tests work as with that model, only fast. Standard library only.

usage: make_model.py [--model FILE] FOLDER [NAME...]     NAME: one of VARIANTS, default all
The real model is --model, else $TANDEM_TEST_MODEL, else the one that deploy/fetch-model.sh fetches.
"""
import argparse
import array
import os
import random
import struct
import sys

import make_directory

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
ALIGNMENT = 32
U32, F32, STRING, ARRAY = 4, 6, 8, 9
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "BF16": 30}

DEFAULTS = dict(layers=2, width=64, ffn=128, heads=4, kv_heads=2, head_dim=16, context=4096,
                type="F32", untied=False, rope_factors=False, seed=1)
VARIANTS = {
    "tiny": {},
    "tiny-other": dict(seed=2),
    "tiny-f16": dict(type="F16"),
    "tiny-bf16": dict(type="BF16"),
    "tiny-q8_0": dict(type="Q8_0"),
    "tiny-q4_0": dict(type="Q4_0"),
    "tiny-q4_1": dict(type="Q4_1"),
    "tiny-head128": dict(width=128, heads=2, kv_heads=1, head_dim=128, type="Q8_0"),
    "tiny-heads9": dict(width=96, heads=9, kv_heads=3, head_dim=32, type="Q8_0"),
    "tiny-llama3": dict(rope_factors=True, type="F16"),
    "tiny-untied": dict(untied=True, type="F16"),
    "tiny-directory": dict(type="BF16", directory=True),
    "tiny-shards": dict(untied=True, type="F16", directory=True, shards=True),
}


class Reader:
    """Cursor over the header of a GGUF file."""

    def __init__(self, data):
        self.data, self.position = data, 0

    def take(self, count):
        if count > len(self.data) - self.position:
            raise ValueError(f"the file ends inside its header, at byte {len(self.data)}")
        self.position += count
        return self.data[self.position - count:self.position]

    def number(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))[0]

    def skip_value(self, value_type):
        if value_type == STRING:
            self.take(self.number("Q"))
        elif value_type == ARRAY:
            element, count = self.number("I"), self.number("Q")
            if element == STRING:
                for _ in range(count):
                    self.take(self.number("Q"))
            else:
                self.take(count * SCALAR_BYTES[element])
        else:
            self.take(SCALAR_BYTES[value_type])


def read_vocabulary(path):
    """(raw key records of the tokenizer, their number, number of tokens) of a real model."""
    with open(path, "rb") as file:
        reader = Reader(file.read(64 << 20))
    if reader.take(4) != b"GGUF" or reader.number("I") not in (2, 3):
        raise ValueError("not a GGUF file of version 2 or 3")
    reader.number("Q")
    records, count, tokens = [], 0, 0
    for _ in range(reader.number("Q")):
        start = reader.position
        key = reader.take(reader.number("Q"))
        value_type = reader.number("I")
        if key == b"tokenizer.ggml.tokens":
            tokens = struct.unpack_from("<Q", reader.data, reader.position + 4)[0]
        reader.skip_value(value_type)
        if key.startswith(b"tokenizer."):
            records.append(reader.data[start:reader.position])
            count += 1
    if tokens == 0:
        raise ValueError("the model has no tokenizer.ggml.tokens")
    return b"".join(records), count, tokens


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def key_record(name, value):
    if isinstance(value, str):
        return text(name) + struct.pack("<I", STRING) + text(value)
    form, value_type = ("<If", F32) if isinstance(value, float) else ("<II", U32)
    return text(name) + struct.pack(form, value_type, value)


def uniform(generator, count, half_width):
    """`count` floats in [-half_width, half_width)."""
    words = array.array("H", generator.randbytes(2 * count))
    step = half_width / 32768
    return array.array("f", [(word - 32768) * step for word in words])


def pack_weights(generator, kind, count, scale):
    """`count` random weights of root mean square `scale`, as the file holds them."""
    if kind in ("F32", "F16", "BF16"):
        values = uniform(generator, count, scale * 3 ** 0.5)
        if kind == "F32":
            return values.tobytes()
        if kind == "F16":
            return struct.pack(f"<{count}e", *values)
        words = array.array("H", values.tobytes())
        return words[1::2].tobytes()  # bf16 is the upper half of an fp32
    blocks = count // 32
    if kind == "Q8_0":
        return b"".join(struct.pack("<e", scale / 74 * generator.uniform(0.8, 1.2)) +
                        generator.randbytes(32) for _ in range(blocks))
    out = []
    for _ in range(blocks):
        step = scale / 4.6 * generator.uniform(0.8, 1.2)
        head = struct.pack("<e", step) if kind == "Q4_0" else struct.pack("<ee", step, -7.5 * step)
        out.append(head + generator.randbytes(16))
    return b"".join(out)


def tensors_of(options, tokens):
    """(name, type, extents, half width or scale) of every tensor, in file order."""
    width, ffn, kind = options["width"], options["ffn"], options["type"]
    query, key = (options[name] * options["head_dim"] for name in ("heads", "kv_heads"))
    matrices = [("attn_q", width, query), ("attn_k", width, key), ("attn_v", width, key),
                ("attn_output", query, width), ("ffn_gate", width, ffn), ("ffn_up", width, ffn),
                ("ffn_down", ffn, width)]
    yield "token_embd.weight", kind, (width, tokens), 0.5
    for layer in range(options["layers"]):
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", "NORM", (width,), 0.2
        for name, columns, rows in matrices:
            # The layers outweigh the embedding: otherwise each token would predict itself.
            yield f"blk.{layer}.{name}.weight", kind, (columns, rows), 2 / columns ** 0.5
    yield "output_norm.weight", "NORM", (width,), 0.2
    if options["untied"]:
        yield "output.weight", kind, (width, tokens), 0.5
    if options["rope_factors"]:
        yield "rope_freqs.weight", "FACTORS", (options["head_dim"] // 2,), 0


def tensor_bytes(generator, kind, extents, scale):
    count = extents[0] * (extents[1] if len(extents) > 1 else 1)
    if kind == "NORM":
        return array.array("f", [1 + v for v in uniform(generator, count, scale)]).tobytes()
    if kind == "FACTORS":  # as llama3 scaling: none for the high frequencies, 32 for the low ones
        return array.array("f", [32 ** (i / (count - 1)) for i in range(count)]).tobytes()
    return pack_weights(generator, kind, count, scale)


def make(path, name, vocabulary):
    options = {**DEFAULTS, **VARIANTS[name]}
    records, record_count, tokens = vocabulary
    generator = random.Random(options["seed"])
    if options.get("directory"):
        make_directory.write(path, options, tokens, [
            (tensor, kind, extents, tensor_bytes(generator, kind, extents, scale))
            for tensor, kind, extents, scale in tensors_of(options, tokens)])
        return
    keys = {
        "general.architecture": "llama", "general.name": name,
        "llama.block_count": options["layers"], "llama.context_length": options["context"],
        "llama.embedding_length": options["width"], "llama.feed_forward_length": options["ffn"],
        "llama.attention.head_count": options["heads"],
        "llama.attention.head_count_kv": options["kv_heads"],
        "llama.attention.key_length": options["head_dim"],
        "llama.attention.value_length": options["head_dim"],
        "llama.rope.dimension_count": options["head_dim"],
        "llama.rope.freq_base": 10000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    directory, data, tensor_count = [], [], 0
    offset = 0
    for tensor, kind, extents, scale in tensors_of(options, tokens):
        content = tensor_bytes(generator, kind, extents, scale)
        directory.append(text(tensor) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents,
                                                    TYPES.get(kind, 0), offset))
        content += bytes(-len(content) % ALIGNMENT)
        data.append(content)
        offset += len(content)
        tensor_count += 1
    header = (b"GGUF" + struct.pack("<IQQ", 3, tensor_count, len(keys) + record_count) +
              b"".join(key_record(*item) for item in keys.items()) + records + b"".join(directory))
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "wb") as file:
        file.write(header + bytes(-len(header) % ALIGNMENT))
        file.writelines(data)
    os.rename(temporary, path)


def path_of(folder, name):
    """A file, or a directory where the variant asks for one."""
    return os.path.join(folder, name + ("" if VARIANTS[name].get("directory") else ".gguf"))


def real_model(given):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return given or os.environ.get("TANDEM_TEST_MODEL") or os.path.join(cache, "tandem", MODEL_FILE)


def fresh(path, sources):
    """Whether `path` is newer than all that it is made from."""
    return os.path.exists(path) and all(os.path.getmtime(s) < os.path.getmtime(path)
                                        for s in sources)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model")
    parser.add_argument("folder")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(VARIANTS))
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(VARIANTS))
    if unknown:
        parser.error(f"no variant {unknown[0]}; there are {', '.join(VARIANTS)}")
    model = real_model(arguments.model)
    if not os.path.exists(model):
        sys.exit(f"make_model: {model} is missing: run deploy/fetch-model.sh, or set TANDEM_TEST_MODEL")
    os.makedirs(arguments.folder, exist_ok=True)
    vocabulary = None
    for name in arguments.names or VARIANTS:
        path = path_of(arguments.folder, name)
        if fresh(path, (model, __file__, make_directory.__file__)):
            continue
        vocabulary = vocabulary or read_vocabulary(model)
        make(path, name, vocabulary)
        print(path)


if __name__ == "__main__":
    main()
