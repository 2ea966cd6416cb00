#!/usr/bin/env python3
"""Compares our logits with Hugging Face transformers on a Hugging Face directory: all positions, teacher-forced.

usage: huggingface_oracle.py make FOLDER [SHAPE...]       directories with random bf16 weights, FOLDER/SHAPE
       huggingface_oracle.py compare DIRECTORY... --dump-logits PROGRAM [--backend auto|cuda] [--device cpu|cuda]
                             [--prompts N] [--longest N] [--chunk N]
       huggingface_oracle.py shapes                       the names that `make` knows

Needs torch and transformers; ctest never runs it. PROGRAM is our dump_logits. The reference is transformers in fp32 on
the weights of the file (bf16); beside it runs transformers in bf16, whose distance from the reference is the yardstick:
our mean |difference| of the logits and our KL divergence may be at most RATIO_MAX times as large. Where our first token
is another one than the reference's, the reference's own gap between the two must be within twice the largest difference
of that position. Everything must be finite. Exit code 1 if anything does not hold.
"""
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import time

RATIO_MAX = 1.15
ROWS = 256  # positions compared at a time
LENGTHS = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 255, 256, 257, 300, 383, 400, 511, 513,
           640, 768, 1000, 1024, 1025, 1536, 2048]

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
LLAMA_1B = dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                num_attention_heads=32, num_key_value_heads=8, head_dim=64, max_position_embeddings=131072,
                rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=LLAMA3, bos_token_id=128000,
                eos_token_id=[128001, 128008, 128009])
# Keys that begin with _ are ours: the spelling of transformers 4, and the size of a shard.
SHAPES = {
    "llama-1b": LLAMA_1B,
    "llama-1b-2": {**LLAMA_1B, "num_hidden_layers": 2},
    "smollm2-135m": dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                         num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=8192,
                         rms_norm_eps=1e-5, tie_word_embeddings=True,
                         rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, eos_token_id=2),
    "head-128": dict(vocab_size=32000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=4,
                     num_attention_heads=8, num_key_value_heads=2, head_dim=128, max_position_embeddings=8192,
                     rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=LLAMA3, eos_token_id=2, _old=True),
    # Small enough for two cores.
    "small-9-3": dict(vocab_size=1000, hidden_size=288, intermediate_size=768, num_hidden_layers=3,
                      num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=4096, rms_norm_eps=1e-6,
                      tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
                      eos_token_id=2, _shard="1MB"),
    "small-head-128": dict(vocab_size=512, hidden_size=192, intermediate_size=384, num_hidden_layers=2,
                           num_attention_heads=2, num_key_value_heads=1, head_dim=128, max_position_embeddings=4096,
                           rms_norm_eps=1e-5, tie_word_embeddings=False, eos_token_id=[3, 4], _old=True,
                           rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}),
    # The whole range of the scaling lies within the prompts.
    "small-llama3": dict(vocab_size=768, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096,
                         rms_norm_eps=1e-5, tie_word_embeddings=True, eos_token_id=2,
                         rope_parameters={**LLAMA3, "factor": 8.0, "original_max_position_embeddings": 256}),
}


def spell_as_before(path):
    """config.json as transformers 4 wrote it."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type" if kind == "linear" else "rope_type": kind, **rope}
    config["torch_dtype"] = config.pop("dtype", "bfloat16")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)


def make(folder, name, seed):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    directory = os.path.join(folder, name)
    if os.path.exists(os.path.join(directory, "config.json")):
        print("kept", directory)
        return
    options = {key: value for key, value in SHAPES[name].items() if not key.startswith("_")}
    torch.manual_seed(seed)
    config = LlamaConfig(initializer_range=options["hidden_size"] ** -0.5, **options)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config)
        for key, weight in model.named_parameters():
            if "norm" in key:  # not all ones: a norm that is left out must show
                torch.nn.init.uniform_(weight.data, 0.8, 1.2)
    model = model.to(torch.bfloat16)
    size = {"max_shard_size": SHAPES[name]["_shard"]} if "_shard" in SHAPES[name] else {}
    model.save_pretrained(directory, **size)
    if SHAPES[name].get("_old"):
        spell_as_before(os.path.join(directory, "config.json"))
    print("wrote", directory, sum(p.numel() for p in model.parameters()), "parameters")


class Theirs:
    """transformers in one number format."""

    def __init__(self, directory, dtype, device):
        import torch
        import transformers
        self.torch, self.device = torch, device
        # The reference attends in plain products: a fused kernel may round fp32 to fewer bits.
        plain = {"attn_implementation": "eager"} if dtype == torch.float32 else {}
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, **plain)
        self.model = self.model.eval().to(device)

    def logits(self, ids):
        with self.torch.no_grad():
            return self.model(self.torch.tensor([ids], device=self.device), use_cache=False).logits[0].float()


class Ours:
    """dump_logits as a pipe."""

    def __init__(self, program, directory, backend, chunk):
        self.chunk = chunk
        self.process = subprocess.Popen([program, directory, backend, "0", str(chunk)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def start(self, ids):
        self.process.stdin.write(struct.pack(f"<{len(ids) + 1}I", len(ids), *ids))
        self.process.stdin.flush()

    def rows(self, count, vocabulary):
        import torch
        data = bytearray(count * vocabulary * 4)
        view, done = memoryview(data), 0
        while done < len(data):
            got = self.process.stdout.readinto(view[done:])
            if not got:
                sys.exit("huggingface_oracle: dump_logits ended early")
            done += got
        return torch.frombuffer(data, dtype=torch.float32).reshape(count, vocabulary)

    def close(self):
        self.process.stdin.close()
        if self.process.wait() != 0:
            sys.exit("huggingface_oracle: dump_logits failed")


class Distance:
    """Of one run from the reference, summed over positions."""

    def __init__(self):
        self.positions = self.mismatches = self.unexplained = 0
        self.absolute = self.divergence = self.worst = 0.0

    def add(self, reference, logits):
        difference = (reference - logits).abs()
        self.positions += len(reference)
        self.absolute += difference.double().mean(dim=1).sum().item()
        worst = difference.max(dim=1).values
        self.worst = max(self.worst, worst.max().item())
        p, q = reference.double().log_softmax(dim=1), logits.double().log_softmax(dim=1)
        self.divergence += (p.exp() * (p - q)).sum().item()
        first, ours = reference.argmax(dim=1, keepdim=True), logits.argmax(dim=1, keepdim=True)
        gap = (reference.gather(1, first) - reference.gather(1, ours))[:, 0]
        self.mismatches += (first != ours).sum().item()
        # Written so that NaN does not hold.
        self.unexplained += (~(gap <= 2 * worst)).sum().item()

    def mean(self):
        return self.absolute / self.positions

    def kl(self):
        return self.divergence / self.positions


def make_prompts(vocabulary, count, longest, seed):
    chance = random.Random(seed)
    lengths = [length for length in LENGTHS if length <= longest]
    if count < len(lengths):  # spread evenly, the longest included
        lengths = [lengths[i * (len(lengths) - 1) // max(1, count - 1)] for i in range(count)]
    return [[chance.randrange(vocabulary) for _ in range(length)] for length in lengths]


def compare(directory, options):
    import torch
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
        vocabulary = json.load(file)["vocab_size"]
    prompts = make_prompts(vocabulary, options.prompts, options.longest, options.seed)
    reference = Theirs(directory, torch.float32, options.device)
    bf16 = Theirs(directory, torch.bfloat16, options.device)
    ours = Ours(options.dump_logits, directory, options.backend, options.chunk)
    distances = {"ours": Distance(), "bf16": Distance()}
    begun = time.monotonic()
    for ids in prompts:
        ours.start(ids)
        expected, theirs = reference.logits(ids), bf16.logits(ids)
        for first in range(0, len(ids), ROWS):
            count = min(ROWS, len(ids) - first)
            part = slice(first, first + count)
            distances["ours"].add(expected[part], ours.rows(count, vocabulary).to(options.device))
            distances["bf16"].add(expected[part], theirs[part])
    ours.close()
    return report(directory, prompts, distances, time.monotonic() - begun)


def report(directory, prompts, distances, seconds):
    ours, bf16 = distances["ours"], distances["bf16"]
    mean_ratio, kl_ratio = (a / b if b > 0 else float("inf") for a, b in
                            ((ours.mean(), bf16.mean()), (ours.kl(), bf16.kl())))
    holds = mean_ratio <= RATIO_MAX and kl_ratio <= RATIO_MAX and ours.unexplained == 0
    name = os.path.basename(os.path.normpath(directory))
    print(f"{'pass' if holds else 'FAIL'} oracle {name}: {len(prompts)} prompts of {min(map(len, prompts))} to "
          f"{max(map(len, prompts))} tokens, {ours.positions} positions, {seconds:.0f} s; mean |difference| "
          f"{ours.mean():.3e} ours, {bf16.mean():.3e} transformers bf16, ratio {mean_ratio:.3f}; KL {ours.kl():.3e} "
          f"ours, {bf16.kl():.3e} bf16, ratio {kl_ratio:.3f}; largest {ours.worst:.3e}, {bf16.worst:.3e}; other first "
          f"token {ours.mismatches}, {bf16.mismatches}, of ours beyond the gap {ours.unexplained}", flush=True)
    return holds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("shapes")
    making = commands.add_parser("make")
    making.add_argument("folder")
    making.add_argument("shapes", nargs="*", choices=[*SHAPES, []])
    making.add_argument("--seed", type=int, default=1)
    comparing = commands.add_parser("compare")
    comparing.add_argument("directories", nargs="+")
    comparing.add_argument("--dump-logits", required=True)
    comparing.add_argument("--backend", choices=["auto", "plain", "avx2", "avx512", "avx512-bf16", "amx",
                                                  "cuda"], default="auto")
    comparing.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    comparing.add_argument("--prompts", type=int, default=len(LENGTHS))
    comparing.add_argument("--longest", type=int, default=max(LENGTHS))
    comparing.add_argument("--chunk", type=int, default=256)
    comparing.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.command == "shapes":
        print(*SHAPES)
    elif options.command == "make":
        for name in options.shapes or SHAPES:
            make(options.folder, name, options.seed)
    elif not all([compare(directory, options) for directory in options.directories]):
        sys.exit(1)


if __name__ == "__main__":
    main()
