"""The table of mistakes that clients make: each gets an error that names the field, the value's bound and what to
do, nothing else happens, and the next request works."""
import math

import msgpack

from tandem_harness import TandemTest, main

CONTEXT, POOL_TOKENS = 512, 256
GOOD = dict(prompt="a quiet river", max_tokens=3, ignore_eos=True)


class Raw(bytes):
    """Bytes of a value that the packer would not write."""


def pack_map(fields):
    """A message whose values may be Raw."""
    out = bytearray([0x80 | len(fields)])
    for key, value in fields:
        out += msgpack.packb(key)
        out += value if isinstance(value, Raw) else msgpack.packb(value)
    return bytes(out)


def submit(**fields):
    return [("type", "submit"), ("id", "x"), *fields.items()]


WRONG_TYPES = {
    "prompt": 7, "ids": "text", "messages": "text", "max_tokens": "ten", "temperature": "hot",
    "top_k": 1.5, "top_p": [], "min_p": "x", "seed": "s", "stop": 5, "stop_token_ids": "x",
    "ignore_eos": 2, "deadline_ms": "soon", "detach": "yes", "parse_special": "no",
}
# field, value, what the message must contain
OUT_OF_RANGE = [
    ("max_tokens", 0, "1"), ("temperature", -0.5, "0"), ("temperature", math.nan, None),
    ("temperature", math.inf, None), ("top_p", 0.0, "0"), ("top_p", 1.5, "1"),
    ("top_p", math.nan, None), ("min_p", -0.1, "0"), ("min_p", 1.01, "1"), ("min_p", math.nan, None),
    ("top_k", -1, "0"), ("seed", -1, "0"), ("max_tokens", -3, "1"), ("deadline_ms", 0, "1"),
    ("stop", ["s"] * 17, "16"), ("stop", ["s" * 65], "64"), ("stop", [""], "1"),
    ("max_tokens", 2 ** 40, None), ("stop_token_ids", [2 ** 31], None),
]


class BadInput(TandemTest):
    def setUp(self):
        super().setUp()
        # 2 KiB for 16 positions in each of two layers: a pool of 256 positions, half of the context.
        self.system.start_coordinator("--context", str(CONTEXT), "--kv-pool-bytes", "64K",
                                      "--prompt-bytes", "64K")
        self.system.start_worker()
        self.client = self.system.client()
        self.expected = self.client.generate("good", **GOOD).outcome()
        self.count = 0

    def refused(self, fields, code="invalid_request", field=None, contains=None):
        packed = pack_map([(key, value) for key, value in fields])
        answer = msgpack.unpackb(self.client.requester.ask_bytes(packed), raw=False,
                                 strict_map_key=False)
        self.assertEqual(answer["type"], "error", f"{fields}: {answer}")
        self.assertEqual(answer["code"], code, f"{fields}: {answer}")
        if field is not None:
            self.assertTrue(answer.get("field", "").startswith(field), f"{fields}: {answer}")
            self.assertIn(field, answer["message"], answer)
        if contains is not None:
            self.assertIn(contains, answer["message"], answer)
        self.next_request_works()
        return answer

    def next_request_works(self):
        self.count += 1
        self.assertEqual(self.client.generate(f"after-{self.count}", **GOOD).outcome(), self.expected)
        stats = self.client.ask(type="stats")
        self.assertEqual((stats["requests_running"], stats["requests_queued"],
                          stats["queue_bytes"]), (0, 0, 0))

    def test_missing_fields(self):
        self.refused([("type", "submit"), ("prompt", "a")], field="id")
        self.refused([("type", "submit"), ("id", "x")], field="prompt")
        for kind in ("next", "cancel", "status"):
            self.refused([("type", kind)], field="id")
        self.refused([("type", "detokenize")], field="ids")
        self.refused([("type", "tokenize")], field="prompt")
        self.refused(submit(messages=[dict(role="user")]), field="messages")
        self.refused([("id", "x"), ("prompt", "a")], field="type")

    def test_wrong_types(self):
        for field, value in WRONG_TYPES.items():
            fields = submit(**{field: value}) if field in ("prompt", "ids", "messages") \
                else submit(prompt="a", **{field: value})
            self.refused(fields, field=field)
        self.refused([("type", "submit"), ("id", 5), ("prompt", "a")], field="id")
        self.refused([("type", "next"), ("id", "x"), ("from_token", "y")], field="from_token")
        self.refused([("type", 99)], field="type")
        self.refused([("type", "nonsense")], field="type")

    def test_out_of_range(self):
        for field, value, contains in OUT_OF_RANGE:
            self.refused(submit(prompt="a", **{field: value}), field=field, contains=contains)
        self.refused([("type", "submit"), ("id", ""), ("prompt", "a")], field="id")
        self.refused([("type", "submit"), ("id", "i" * 65), ("prompt", "a")], field="id", contains="64")
        self.refused([("type", "next"), ("id", "good"), ("max_wait_ms", 20001)], field="max_wait_ms",
                     contains="20000")

    def test_unknown_and_doubled_fields(self):
        self.refused(submit(prompt="a", temprature=0.5), contains="temprature")
        self.refused(submit(prompt="a") + [("prompt", "b")], contains="prompt")
        for name in ("n", "logprobs", "logit_bias", "presence_penalty", "grammar"):
            self.refused(submit(prompt="a", **{name: 1}), contains=name)

    def test_one_source_of_the_prompt(self):
        self.refused(submit(prompt="a", ids=[1]), field="prompt")
        self.refused(submit(prompt=""), field="prompt")
        self.refused(submit(ids=[]), field="ids")
        self.refused(submit(messages=[]), field="messages")
        self.refused(submit(messages=[dict(role="<|im_start|>", content="x")]), field="messages")
        self.refused(submit(ids=[49152]), field="ids", contains="49152")

    def test_text_that_is_no_text(self):
        for raw in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"ab\xe2\x82"):
            value = Raw(bytes([0xa0 | len(raw)]) + raw)
            self.refused(submit(prompt=value), field="prompt")
            self.refused(submit(prompt="a", stop=Raw(b"\x91" + value)), field="stop")

    def test_too_long(self):
        answer = self.refused(submit(ids=[5] * CONTEXT), code="prompt_too_long")
        self.assertEqual(answer["limit"], CONTEXT - 1)
        self.refused(submit(prompt="word " * 3000), code="prompt_too_long")
        answer = self.refused(submit(prompt="x" * (64 * 1024 + 1)), code="too_large", field="prompt")
        self.assertEqual(answer["limit"], 64 * 1024)
        # The last token is sampled and never computed, so one more than the pool holds would fit.
        answer = self.refused(submit(ids=[5] * 200, max_tokens=POOL_TOKENS - 200 + 2), code="too_large")
        self.assertIn(str(POOL_TOKENS), answer["message"])
        self.refused(submit(ids=[5] * 100, max_tokens=CONTEXT), field="max_tokens")

    def test_requests_that_are_not_there(self):
        for kind in ("next", "cancel", "status"):
            answer = self.refused([("type", kind), ("id", "nobody")], code="not_found")
            self.assertIn("instance", answer)
        self.refused(submit(prompt="first", max_tokens=2)[:1] + [("id", "good"), ("prompt", "other")],
                     code="idempotency_conflict")

    def test_version_of_the_future(self):
        self.refused(submit(prompt="a", version=2 ** 20), code="unsupported_version")


if __name__ == "__main__":
    main()
