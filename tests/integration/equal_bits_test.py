"""One answer has one set of bits: whoever else is in the batch, however the prompt was cut, wherever its blocks
lie, on whatever instruction set and number of threads, and however often it was preempted."""
import os
import sys

from tandem_harness import Streams, TandemTest, main

WORDS = "rain on the harbour wall and a lamp that nobody had lit since the old keeper left".split()
NEIGHBOURS = 31
TOKENS = 48


# What /proc/cpuinfo calls the instructions of a set; plain C runs everywhere.
INSTRUCTION_SETS = {
    "plain": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"},
    "avx512-bf16": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"},
    "amx": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_tile", "amx_int8"},
}


def instruction_sets():
    """Those that the processor has; the others are named as left out."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        flags = set(next(line for line in file if line.startswith("flags")).split())
    for name, needs in INSTRUCTION_SETS.items():
        if needs <= flags:
            yield name
        else:
            print(f"{name} left out: this processor lacks {', '.join(sorted(needs - flags))}",
                  file=sys.stderr)


def text(start, count):
    return " ".join(WORDS[(start * 5 + i * 3) % len(WORDS)] for i in range(count))


# Prompts around the borders of blocks (16), chunks and attention tiles (64, 256); greedy and sampled.
PROBES = {
    "one": dict(prompt="a", max_tokens=TOKENS),
    "border": dict(prompt=text(1, 16), max_tokens=TOKENS, temperature=0.9, seed=11, top_k=50),
    "tile": dict(prompt=text(2, 70), max_tokens=TOKENS),
    "segment": dict(prompt=text(3, 300), max_tokens=TOKENS, temperature=0.7, seed=12, top_p=0.9),
    "chat": dict(messages=[dict(role="user", content=text(4, 40))], max_tokens=TOKENS,
                 temperature=1.1, seed=13, min_p=0.02),
}
for probe in PROBES.values():
    probe["ignore_eos"] = True


class Outcomes(TandemTest):
    def outcomes(self, coordinator=(), worker=(), neighbours=0, neighbour_tokens=20, together=True):
        """What each probe gives in a fresh pair of services."""
        owner, executor = self.system.start_coordinator(*coordinator), None
        try:
            executor = self.system.start_worker(*worker)
            streams = Streams(self.system)
            for number in range(neighbours):
                streams.start(f"neighbour-{number}", prompt=text(number, 1 + 9 * number),
                              max_tokens=neighbour_tokens + number, ignore_eos=True, temperature=1.0,
                              seed=number)
            found = {}
            for name, fields in PROBES.items():
                streams.start(name, **fields)
                if not together:
                    streams.join()
            answers = streams.join()
            for name in PROBES:
                found[name] = answers[name].outcome()
                self.assertIsNotNone(found[name][3], "the worker hashes its logits")
                self.assertEqual(len(found[name][0]), TOKENS)
            self.preemptions = self.system.stats()["preemptions"]
            return found
        finally:
            for process in (owner, executor):
                if process is not None:
                    process.kill()
            os.unlink(os.path.join(self.system.run_dir, "client.ipc"))

    def setUp(self):
        super().setUp()
        self.alone = self.outcomes(together=False)

    def assert_same(self, found, how):
        for name in PROBES:
            self.assertEqual(found[name], self.alone[name], f"{name}, {how}")

    def assert_same_everywhere(self):
        for threads in ("1", "2", "3"):
            for isa in instruction_sets():
                self.assert_same(self.outcomes(worker=("--threads", threads, "--cpu-isa", isa)),
                                 f"{threads} threads, {isa}")


class EqualBits(Outcomes):
    def test_alone_and_among_others(self):
        self.assert_same(self.outcomes(neighbours=NEIGHBOURS), f"among {NEIGHBOURS} others")

    def test_chunks_of_the_prompt(self):
        for chunk in ("16", "64", "0"):
            self.assert_same(self.outcomes(("--prefill-chunk", chunk)), f"chunks of {chunk}")
        self.assert_same(self.outcomes(("--step-tokens", "17"), neighbours=7), "steps of 17 tokens")

    def test_threads_and_instruction_sets(self):
        self.assert_same_everywhere()

    def test_places_of_the_blocks(self):
        for seed in ("1", "2"):
            self.assert_same(self.outcomes(("--debug-shuffle-blocks", seed), neighbours=5),
                             f"blocks permuted by {seed}")

    def test_preempted(self):
        # 640 positions for neighbours that start small and grow to three times that.
        found = self.outcomes(("--kv-pool-bytes", "160K"), neighbours=9, neighbour_tokens=200)
        self.assertGreater(self.preemptions, 0, "the pool was to be short")
        self.assert_same(found, f"{self.preemptions} preemptions")


class EqualBitsOfBf16(Outcomes):
    """Products of BF16 weights are an instruction of their own where the processor has it."""
    model = "tiny-bf16"

    def test_threads_and_instruction_sets(self):
        self.assert_same_everywhere()

    def test_among_others_in_chunks(self):
        self.assert_same(self.outcomes(("--prefill-chunk", "16"), neighbours=NEIGHBOURS),
                         f"chunks of 16 among {NEIGHBOURS} others")


if __name__ == "__main__":
    main()
