#!/usr/bin/env python3
"""Our divergence from fp32 beside llama.cpp's, on the same positions of the same text.

usage: quality_vs_llamacpp.py MODEL.gguf DUMP_LOGITS LLAMA_PERPLEXITY [--chunks N] [--threads N]

The reference is transformers in fp32 on the dequantized weights (logits_oracle.py, whose packages this needs). The text
is English and code, cut into chunks of 1,024 tokens by llama-perplexity, which saves the log-probabilities of the
second half of each; the others are asked for the same ids. It saves 16 bits per token over the 16 nats below the
largest, and raises what is less likely to that floor: over a vocabulary of 50,000 that is a mass of up to 5e-3, so the
reference gets the same floor before it is compared with llama.cpp. Ends with an error if ours is beyond the bounds of
logits_oracle.py.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch

from logits_oracle import GAP, ROWS, Oracle, Ours, Totals, bounds_of, long_text

CONTEXT = 1024
FLOOR_NATS = 16
HEADER = b"_logits_"


def write_text(path, chunks):
    """English and code in turn, more than the chunks need (about 3 bytes a token)."""
    english, code = long_text()
    text, wanted = "", chunks * CONTEXT * 8
    while len(text) < wanted:
        text += english + "\n" + code + "\n"
    pathlib.Path(path).write_text(text)


class Saved:
    """What llama-perplexity --kl-divergence-base wrote: ids, and log-probabilities of the second halves."""

    def __init__(self, path):
        self.file = open(path, "rb")
        if self.file.read(len(HEADER)) != HEADER:
            sys.exit("quality_vs_llamacpp: not a file of llama-perplexity")
        self.context, self.vocabulary, self.chunks = numpy.frombuffer(self.file.read(12), "<i4").tolist()
        ids = numpy.frombuffer(self.file.read(4 * self.context * self.chunks), "<i4")
        self.ids = ids.reshape(self.chunks, self.context).tolist()
        self.first, self.count = self.context // 2, self.context - 1 - self.context // 2

    def rows(self):
        """[count][vocabulary] of the next chunk."""
        words = 2 * ((self.vocabulary + 1) // 2) + 4
        raw = numpy.frombuffer(self.file.read(2 * words * self.count), "<u2").reshape(self.count, words)
        scale_and_least = raw[:, :4].copy().view("<f4")
        values = raw[:, 4:4 + self.vocabulary].astype(numpy.float32)
        return torch.from_numpy(scale_and_least[:, :1] * values + scale_and_least[:, 1:2])


def save(arguments, folder):
    text, saved = f"{folder}/text", f"{folder}/logits"
    write_text(text, arguments.chunks)
    command = [arguments.llama_perplexity, "-m", arguments.model, "-f", text, "-c", str(CONTEXT), "--chunks",
               str(arguments.chunks), "-t", str(arguments.threads), "--kl-divergence-base", saved]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stderr[-2000:]}")
    return Saved(saved)


def floored(logits):
    """Log-probabilities as llama-perplexity saves them."""
    values = torch.log_softmax(logits, dim=1)
    return values.maximum(values.amax(dim=1, keepdim=True) - FLOOR_NATS)


def add_rows(totals, theirs, ours):
    for start in range(0, len(theirs), ROWS):
        totals.add(theirs[start:start + ROWS], ours[start:start + ROWS])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model")
    parser.add_argument("dump_logits")
    parser.add_argument("llama_perplexity")
    parser.add_argument("--chunks", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        saved = save(arguments, folder)
        oracle = Oracle(arguments.model)
        ours = Ours(arguments.dump_logits, arguments.model, arguments.threads, CONTEXT)
        of_ours, of_llama = Totals(), Totals()
        for ids in saved.ids:
            ours.start(ids)
            begin, end = saved.first, saved.first + saved.count
            reference = oracle.logits(ids)[begin:end]
            add_rows(of_ours, reference, ours.rows(len(ids), saved.vocabulary)[begin:end])
            # Log-probabilities stand for logits: a constant per row changes no divergence.
            add_rows(of_llama, floored(reference), saved.rows())
        ours.close()
    print(f"ours:      {of_ours.line()}")
    theirs = of_llama.report()
    print(f"llama.cpp: {of_llama.positions} positions: KL {theirs['kl']:.2e} top-1 {100 * theirs['top1']:.3f} % "
          f"wrong beyond a gap of {GAP}: {of_llama.wrong_beyond_gap}")
    bounds = bounds_of(arguments.model)
    if not of_ours.within(bounds):
        sys.exit(f"quality_vs_llamacpp: beyond the bounds {bounds}")


if __name__ == "__main__":
    main()
