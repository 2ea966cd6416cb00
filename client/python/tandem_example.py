#!/usr/bin/env python3
"""Tandem from Python with stock packages: pip install pynng msgpack.

    python3 tandem_example.py "What is the capital of France?"
    python3 tandem_example.py --ids 1,2,3        ids in, ids out: a model without a tokenizer

Shows what a client needs: submit, stream with cursors, survive a cut, cancel with Ctrl-C. A message
is one msgpack map with the names of docs/PROTOCOL.md as keys; every question has one answer.
"""
import array
import os
import sys
import uuid

import msgpack
import pynng


class TandemError(Exception):
    """The coordinator refused: code, message, perhaps field, limit and retry_after_ms."""

    def __init__(self, fields):
        super().__init__(f"{fields['message']} ({fields['code']})")
        self.fields = fields


def find_run_dir():
    """Where the command `tandem` looks, in the same order."""
    if named := os.environ.get("TANDEM_RUN_DIR"):
        return named
    place = os.path.join(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "tandem")
    return place if os.path.exists(os.path.join(place, "client.ipc")) else "/run/tandem"


class Tandem:
    def __init__(self, run_dir):
        # resend_time=-1: else nng asks again by itself after a minute; ask() decides that here.
        self.socket = pynng.Req0(
            dial=f"ipc://{run_dir}/client.ipc", block_on_dial=True, resend_time=-1,
            send_timeout=15_000, recv_timeout=25_000, reconnect_time_min=10, recv_max_size=9 << 20)

    def ask(self, type, **fields):
        """Every question may be repeated: `submit` is known by its id, `next` by its cursors. So
        after a cut or a silence the same is asked again."""
        frame = msgpack.packb({"type": type, **fields})
        assert len(frame) <= 2 << 20, "a message above 2 MiB would be cut off"
        for attempt in (1, 2, 3):
            try:
                self.socket.send(frame)
                answer = msgpack.unpackb(self.socket.recv())
                break
            except (pynng.ConnectionReset, pynng.Timeout):
                if attempt == 3:
                    raise
        if answer["type"] == "error":
            raise TandemError(answer)
        return answer

    def stream(self, request_id, **fields):
        """Submits, then yields (ids, text, finish) until finish is not None. The text is bytes."""
        self.ask("submit", id=request_id, **fields)
        token = byte = 0  # seen so far; they make a repeated question harmless
        finish = None
        while finish is None:
            # The coordinator answers when there is news, or after 20 s without any.
            news = self.ask("next", id=request_id, from_token=token, from_byte=byte,
                            max_wait_ms=20_000)
            text = news["text"]
            text = text.encode() if isinstance(text, str) else text  # str if it is UTF-8
            ids = array.array("I", news["tokens"]).tolist()  # four bytes each, little-endian
            token += len(ids)
            byte += len(text)
            finish = news.get("finish")
            yield ids, text, finish


def main():
    question = " ".join(sys.argv[1:]) or "What is the capital of France?"
    prompt = {"messages": [{"role": "user", "content": question}]}
    if sys.argv[1:2] == ["--ids"]:
        try:
            prompt = {"ids": [int(word) for word in "".join(sys.argv[2:]).split(",")]}
        except ValueError:
            raise SystemExit("usage: tandem_example.py --ids 1,2,3")
    try:
        tandem = Tandem(find_run_dir())
        name = uuid.uuid4().hex
        for ids, text, finish in tandem.stream(name, **prompt, max_tokens=500):
            sys.stdout.buffer.write(b"%d " * len(ids) % (*ids,) if "ids" in prompt else text)
            sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        finish = tandem.ask("cancel", id=name)["finish"]
    except pynng.ConnectionRefused:
        raise SystemExit("no coordinator answers: start tandem-coordinator, or set TANDEM_RUN_DIR")
    except TandemError as error:
        raise SystemExit(f"refused: {error}")
    print(f"\n[{finish['reason']}, {finish['usage']['completion_tokens']} tokens, first after "
          f"{finish['timings']['first_token_ns'] / 1e6:.0f} ms]")


if __name__ == "__main__":
    main()
