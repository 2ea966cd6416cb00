#!/usr/bin/env python3
"""Compares our logits with Hugging Face transformers in fp32 on the same dequantized weights.

usage: logits_oracle.py compare MODEL.gguf DUMP_LOGITS [--prompts N] [--chunk N] [--threads N]
       logits_oracle.py golden MODEL.gguf > logits.golden

Needs the PyPI packages transformers, torch, gguf, accelerate and those of tokenizer_oracle.py; ctest never runs it.
DUMP_LOGITS is our program of that name (build/<preset>/bin). Both sides see the same ids at every position (teacher
forcing). `compare` runs all prompts and ends with an error if a bound of BOUNDS is passed; `golden` writes compact
numbers of some prompts, which logits_golden_test checks in CI.
"""
import argparse
import math
import pathlib
import struct
import subprocess
import sys
import time

import gguf
import numpy
import torch
import transformers

from tokenizer_oracle import PARSED, Reference

HERE = pathlib.Path(__file__).resolve().parent
BOUNDS = {"max": 0.1, "mean": 0.005, "kl": 1e-5, "top1": 0.998}
BOUNDS_BF16 = {"max": 1.0, "mean": 0.08, "kl": 2e-4, "top1": 0.99}  # activations are rounded to bf16 with such weights
GAP = 0.2  # where the oracle's first two are further apart, our first must be the same
TOP = 8
GOLDEN_LENGTH_MAX = 300
ROWS = 128  # positions compared at a time

QUESTIONS = [
    "What is the capital of France?", "Why is the sky blue?", "Write a haiku about the sea.",
    "Explain recursion to a child.", "Translate 'good morning' into Spanish, German and Japanese.",
    "What is 17 * 23?", "List three uses of a paper clip.", "Who wrote Hamlet?", "Hi", "?",
    "Give me a Python function that reverses a string.", "Was ist der Unterschied zwischen TCP und UDP?",
    "请用一句话介绍北京。", "Summarise the plot of Romeo and Juliet in two sentences.",
    "How do I boil an egg?\n\nPlease answer with numbered steps.", "😀🎉 what do these mean?",
]
PLAIN = [
    "The", "\n", " ", "1", "Once upon a time", "The quick brown fox jumps over the lazy dog.",
    "int main(void)\n{\n    return 0;\n}\n", "SELECT name, COUNT(*) FROM users WHERE age > 30 GROUP BY",
    "0123456789 9876543210", "Ünïcödé — “quotes” … naïve café", "日本語の文章をここに書きます。",
    "    \n\n\t\t  indented", "A, B, C, D, E, F, G,", "<|im_start|>user\nHello<|im_end|>\n",
]
LENGTHS = [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 769,
           1023, 1024, 1025, 1500]


def long_text():
    """English (the licence of this project) and code (our own sources), long enough for all LENGTHS."""
    root = HERE.parent.parent
    english = (root / "LICENSE").read_text()
    code = "".join((root / "common" / name).read_text() for name in ("gguf.c", "float16.h", "geometry.h"))
    return english, code


def make_prompts(reference):
    """[(name, ids)], shortest first within each kind."""
    prompts = []
    for question in QUESTIONS:
        rendered = reference.render([{"role": "user", "content": question}])
        prompts.append(("chat " + repr(question)[:30], reference.encode(PARSED, [rendered])[0]))
    for text in PLAIN:
        prompts.append(("plain " + repr(text)[:30], reference.encode(PARSED, [text])[0]))
    english, code = (reference.encode(PARSED, [text])[0] for text in long_text())
    for number, length in enumerate(LENGTHS):
        source, name = ((english, "english"), (code, "code"))[number % 2]
        start = 37 * number
        if start + length > len(source):
            start = 0
        prompts.append((f"{name} of {length}", source[start:start + length]))
    assert all(len(ids) > 0 for _, ids in prompts)
    return prompts


class Oracle:
    def __init__(self, path):
        path = pathlib.Path(path)
        torch.set_grad_enabled(False)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32,
            attn_implementation="eager").eval()

    def logits(self, ids):
        return self.model(torch.tensor([ids]), use_cache=False).logits[0].float()


class Ours:
    def __init__(self, program, model, threads, chunk):
        self.process = subprocess.Popen([program, model, "auto", str(threads), str(chunk)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, ids):
        self.process.stdin.write(struct.pack(f"<{len(ids) + 1}I", len(ids), *ids))
        self.process.stdin.flush()

    def rows(self, count, vocabulary):
        data = self.process.stdout.read(count * vocabulary * 4)
        if len(data) != count * vocabulary * 4:
            sys.exit("logits_oracle: dump_logits ended early")
        return torch.from_numpy(numpy.frombuffer(data, "<f4").reshape(count, vocabulary).copy())

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("logits_oracle: dump_logits failed")


class Totals:
    """Sums over positions; all of it must stay finite."""

    def __init__(self):
        self.positions = self.same = self.wrong_beyond_gap = 0
        self.worst = self.absolute = self.divergence = 0.0

    def add(self, theirs, ours):
        difference = (theirs - ours).abs()
        self.positions += len(theirs)
        self.worst = max(self.worst, difference.max().item())
        self.absolute += difference.double().mean(dim=1).sum().item()
        p, q = (torch.log_softmax(x.double(), dim=1) for x in (theirs, ours))
        self.divergence += (p.exp() * (p - q)).sum().item()
        top = theirs.topk(2, dim=1)
        same = top.indices[:, 0] == ours.argmax(dim=1)
        self.same += same.sum().item()
        far = top.values[:, 0] - top.values[:, 1] > GAP
        self.wrong_beyond_gap += (far & ~same).sum().item()

    def report(self):
        return {"max": self.worst, "mean": self.absolute / self.positions,
                "kl": self.divergence / self.positions, "top1": self.same / self.positions}

    def line(self):
        values = self.report()
        return (f"{self.positions} positions: max {values['max']:.4f} mean {values['mean']:.6f} "
                f"KL {values['kl']:.2e} top-1 {100 * values['top1']:.3f} % "
                f"wrong beyond a gap of {GAP}: {self.wrong_beyond_gap}")

    def within(self, bounds):
        values = self.report()
        return (all(values[name] <= bounds[name] for name in ("max", "mean", "kl")) and
                values["top1"] >= bounds["top1"] and self.wrong_beyond_gap == 0)


def bounds_of(model):
    """Those that hold for the types of the file's weights."""
    types = {tensor.tensor_type for tensor in gguf.GGUFReader(model).tensors}
    return BOUNDS_BF16 if gguf.GGMLQuantizationType.BF16 in types else BOUNDS


def compare(arguments):
    prompts = make_prompts(Reference(arguments.model))[:arguments.prompts]
    oracle = Oracle(arguments.model)
    ours = Ours(arguments.dump_logits, arguments.model, arguments.threads, arguments.chunk)
    totals = Totals()
    begun = time.monotonic()
    for name, ids in prompts:
        ours.start(ids)
        one = Totals()
        theirs = oracle.logits(ids)
        chunk_rows = arguments.chunk
        for first in range(0, len(ids), chunk_rows):
            count = min(chunk_rows, len(ids) - first)
            rows = ours.rows(count, theirs.shape[1])
            for start in range(0, count, ROWS):
                for totals_of in (one, totals):
                    totals_of.add(theirs[first + start:first + min(start + ROWS, count)],
                                  rows[start:start + ROWS])
        print(f"{name}: {one.line()}", flush=True)
    ours.close()
    print(f"{len(prompts)} prompts in {time.monotonic() - begun:.0f} s, {totals.line()}")
    bounds = bounds_of(arguments.model)
    if not totals.within(bounds):
        sys.exit(f"logits_oracle: beyond the bounds {bounds}")


def golden_positions(length):
    """The first, the last three, and the borders of blocks, tiles and segments before the end."""
    wanted = {0, length // 2, length - 3, length - 2, length - 1, 15, 16, 63, 64, 255, 256, 512}
    return sorted(p for p in wanted if 0 <= p < length)


def golden(arguments):
    prompts = [p for p in make_prompts(Reference(arguments.model)) if len(p[1]) <= GOLDEN_LENGTH_MAX]
    chats = [p for p in prompts if p[0].startswith("chat")][:4]
    plain = [p for p in prompts if p[0].startswith("plain")][:7]
    long = [p for p in prompts if p[0].endswith((" of 17", " of 65", " of 257"))]
    oracle = Oracle(arguments.model)
    print(f"# Generated by logits_oracle.py with transformers {transformers.__version__}, torch "
          f"{torch.__version__}: fp32 logits of the dequantized model.")
    for name, ids in chats + plain + long:
        logits = oracle.logits(ids)
        print(f"# {name}")
        print("prompt", len(ids), *ids)
        for position in golden_positions(len(ids)):
            row = logits[position].double()
            top = row.topk(TOP)
            pairs = " ".join(f"{i}:{v:.5f}" for i, v in zip(top.indices.tolist(), top.values.tolist()))
            log_sum = torch.logsumexp(row, dim=0).item()
            assert math.isfinite(log_sum)
            print(f"at {position} {log_sum:.5f} {pairs}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    comparing = commands.add_parser("compare")
    comparing.add_argument("model")
    comparing.add_argument("dump_logits")
    comparing.add_argument("--prompts", type=int, default=None)
    comparing.add_argument("--chunk", type=int, default=256)
    comparing.add_argument("--threads", type=int, default=0)
    making = commands.add_parser("golden")
    making.add_argument("model")
    arguments = parser.parse_args()
    {"compare": compare, "golden": golden}[arguments.command](arguments)


if __name__ == "__main__":
    main()
