"""A worker that attaches like a real one and then lies in one way.

usage: lying_worker.py RUN_DIR RECORD CASE     RECORD: file of record(), from a real worker
It ends when the coordinator kills it, or after 30 s with exit 3. CASES tells what the coordinator has to find."""
import math
import struct
import sys
import time

import msgpack

import sp_wire
from link_peers import (DRAINED, EPOCH, FATAL, INSTANCE, LAYOUT, PLAN_REFUSED, READY, RESULT, ROWS, STEP, TYPE,
                        FakeWorker, column)

U32_MAX, U64_MAX = 2 ** 32 - 1, 2 ** 64 - 1
SLOT, GENERATION, POSITION, TOKEN, LOGPROB, FLAGS = range(6)
PROGRESS_OFFSET = 4096 + 128
RESULTS_OFFSET, RESULT_CELLS, RESULT_STRIDE, RESULT_FRAME = 8192, 2, 36864, 128  # proto/segment_layout.h
MISMATCH = "mismatch"
# Lies after a result that was accepted: its tokens are not those of an honest worker.
AFTER_AN_ANSWER = ("shown_and_sent_differ", "shown_once_sent_twice")
CASES = {}


def case(reason, *names):
    """Names of lies told by the function below; `reason`: why the epoch ends."""
    def register(function):
        for name in names:
            CASES[name] = (reason, function)
        return function
    return register


WRONG_VALUES = {
    "slot_next": (SLOT, lambda value: value + 1), "slot_none": (SLOT, lambda value: 1024),
    "slot_max": (SLOT, lambda value: U32_MAX), "generation_next": (GENERATION, lambda value: value + 1),
    "generation_zero": (GENERATION, lambda value: 0), "generation_max": (GENERATION, lambda value: U32_MAX),
    "position_next": (POSITION, lambda value: value + 1), "position_before": (POSITION, lambda value: value - 1),
    "position_zero": (POSITION, lambda value: 0), "position_max": (POSITION, lambda value: U32_MAX),
    "token_beyond": (TOKEN, lambda value: 49152), "token_max": (TOKEN, lambda value: U32_MAX),
    "logprob_nan": (LOGPROB, lambda value: math.nan), "logprob_above_zero": (LOGPROB, lambda value: 1.0),
    "logprob_infinite": (LOGPROB, lambda value: -math.inf), "flags_unknown": (FLAGS, lambda value: 0x80),
}


@case(MISMATCH, *WRONG_VALUES)
def wrong_value(worker, name, step, rows):
    column_number, change = WRONG_VALUES[name]
    lie = worker.honest_rows(rows)
    lie[0][column_number] = change(lie[0][column_number])
    worker.send(worker.result(step, lie))


@case(MISMATCH, "step_next", "step_zero", "step_max")
def wrong_step(worker, name, step, rows):
    value = {"step_next": step + 1, "step_zero": 0, "step_max": U64_MAX}[name]
    worker.send(worker.result(value, worker.honest_rows(rows)))


@case(MISMATCH, "row_more", "rows_none", "rows_twice", "rows_1024")
def wrong_rows(worker, name, step, rows):
    honest = worker.honest_rows(rows)
    stranger = [1000, 1, 5, 5, -1.0, 0]
    lie = {"row_more": honest + [stranger], "rows_none": [], "rows_twice": honest * 2,
           "rows_1024": [[slot, 1, 5, 5, -1.0, 0] for slot in range(1024)]}[name]
    worker.send(worker.result(step, lie))


@case(MISMATCH, "count_more", "count_max", "column_short", "column_missing", "column_text", "layout_unknown",
      "hash_of_other_length", "timings_missing", "step_text", "unknown_type", "type_of_a_plan", "field_twice")
def wrong_form(worker, name, step, rows):
    fields = worker.result(step, worker.honest_rows(rows))
    if name == "field_twice":
        body = msgpack.packb(fields)
        worker.send(bytes([body[0] + 1]) + body[1:] + msgpack.packb(STEP) + msgpack.packb(step))
        return
    key, value = {"count_more": (ROWS, len(rows) + 1), "count_max": (ROWS, U32_MAX), "column_short": (9, b"\0"),
                  "column_missing": (10, None), "column_text": (7, "text"), "layout_unknown": (LAYOUT, 2),
                  "hash_of_other_length": (13, b"\0" * 12), "timings_missing": (14, None),
                  "step_text": (STEP, "one"), "unknown_type": (TYPE, 99), "type_of_a_plan": (TYPE, 1)}[name]
    fields[key] = value
    worker.send({key: value for key, value in fields.items() if value is not None})


def show(worker, step, frame):
    """In the segment, as a worker does it before it sends the frame."""
    cell = RESULTS_OFFSET + step % RESULT_CELLS * RESULT_STRIDE
    worker.memory[cell + RESULT_FRAME:cell + RESULT_FRAME + len(frame)] = frame
    struct.pack_into("<QQQ", worker.memory, cell, step, time.monotonic_ns(), len(frame))


@case(MISMATCH, "shown_of_another_step", "shown_ready", "shown_random", "shown_wrong_value", *AFTER_AN_ANSWER)
def shown(worker, name, step, rows):
    """A frame wakes the coordinator, which looks at what is shown first, and judges it as a frame."""
    honest = msgpack.packb(worker.result(step, worker.honest_rows(rows)))
    lie = worker.honest_rows(rows)
    lie[0][SLOT if name == "shown_wrong_value" else TOKEN] += 1
    lie = msgpack.packb(worker.result(step, lie))
    show(worker, step, {"shown_of_another_step": msgpack.packb(worker.result(step + 1, worker.honest_rows(rows))),
                        "shown_ready": msgpack.packb(worker.envelope(READY)), "shown_random": bytes(range(250)),
                        "shown_wrong_value": lie}.get(name, honest))
    worker.send(lie if name == "shown_and_sent_differ" else honest)
    if name == "shown_once_sent_twice":
        worker.send(honest)


def lie_plainly(worker, step, rows):
    wrong_value(worker, "slot_max", step, rows)


@case(MISMATCH, "other_epoch", "other_instance", "ready_again", "ready_of_other_epoch")
def dropped_and_counted(worker, name, step, rows):
    """What is of no concern is dropped; the lie that follows is found."""
    result = worker.result(step, worker.honest_rows(rows))
    worker.send({"other_epoch": {**result, EPOCH: result[EPOCH] + 1}, "other_instance": {**result, INSTANCE: b"x" * 16},
                 "ready_again": worker.envelope(READY),
                 "ready_of_other_epoch": {**worker.envelope(READY), EPOCH: U64_MAX}}[name])
    time.sleep(0.1)
    lie_plainly(worker, step, rows)


@case(MISMATCH, "frame_empty", "frame_nil", "frame_map_of_nothing", "frame_bomb", "frame_deep", "frame_random",
      "frame_too_large_inside")
def no_message(worker, name, step, rows):
    worker.send({"frame_empty": b"", "frame_nil": b"\xc0", "frame_map_of_nothing": b"\x80",
                 "frame_bomb": b"\xdd\x0f\x00\x00\x00", "frame_deep": b"\x81\x01" + b"\x91" * 10000 + b"\x01",
                 "frame_random": bytes((7 * i * i) % 251 for i in range(5000)),
                 "frame_too_large_inside": b"\xdf\xff\xff\xff\xff" + bytes(200000)}[name])


@case("lost", "announces_2_64", "announces_2_40", "announces_1_mib")
def announced(worker, name, step, rows):
    """The connection is cut; such a worker can only leave."""
    length = {"announces_2_64": 2 ** 64 - 32, "announces_2_40": 2 ** 40, "announces_1_mib": 1 << 20}[name]
    worker.link.sendall(struct.pack(">BQ", 1, length))
    try:
        while worker.link.recv(4096):
            pass  # a second plan may be under way
    except ConnectionResetError:
        pass
    worker.connection.close()


@case(MISMATCH, "flood_of_ready", "flood_of_unknown")
def flood(worker, name, step, rows):
    body = msgpack.packb(worker.envelope(READY if name == "flood_of_ready" else 99))
    frame = sp_wire.FRAME.pack(1, len(body)) + body
    try:
        for _ in range(100):
            worker.link.sendall(frame * 100)
    except OSError:
        return  # cut off in the middle
    lie_plainly(worker, step, rows)


@case("refused", "refused_row_beyond", "refused_other_step", "refused_unknown_reason", "refused_no_row")
def refuses(worker, name, step, rows):
    changes = {"refused_row_beyond": {"f5": 1023}, "refused_other_step": {f"f{STEP}": U64_MAX, "f5": 0},
               "refused_unknown_reason": {"f6": 77}, "refused_no_row": {}}[name]
    worker.send(worker.envelope(PLAN_REFUSED, **{f"f{STEP}": step, "f6": 13, "f7": "\x1b[31m line\nbreak", **changes}))


@case("fatal", "fatal_with_odd_text")
def dies_loudly(worker, name, step, rows):
    worker.send(worker.envelope(FATAL, f4=1, f5="\x1b[31m" + "x" * 500 + "\n"))


@case("lost", "drained_of_other_step")
def leaves(worker, name, step, rows):
    worker.send(worker.envelope(DRAINED, **{f"f{STEP}": U64_MAX}))


@case("silent", "heart_stops", "heart_stops_in_the_middle_of_a_word")
def heart_stops(worker, name, step, rows):
    if name.endswith("word"):
        struct.pack_into("<Q", worker.memory, PROGRESS_OFFSET, 7)  # odd: somebody writes the group
    worker.beating.clear()


@case("hung", "never_answers", "never_answers_nor_ends_its_word")
def never_answers(worker, name, step, rows):
    if name.endswith("word"):
        struct.pack_into("<Q", worker.memory, PROGRESS_OFFSET, 7)


def attach(run_dir, record):
    with open(record, "rb") as file:
        hello, segment = msgpack.unpackb(file.read(), raw=False, strict_map_key=False)
    return FakeWorker(run_dir, hello, segment)


def result_without_plan(worker):
    worker.send(worker.result(1, [[0, 1, 5, 5, -1.0, 0]]))


def main():
    run_dir, record, name = sys.argv[1:]
    worker = attach(run_dir, record)
    while worker.answer()[TYPE] != 2:
        pass
    worker.dial()
    print("attached", flush=True)
    worker.ready()
    step, rows = worker.plan()
    while not worker.honest_rows(rows):  # a chunk that samples nothing is answered honestly
        worker.send(worker.result(step, []))
        step, rows = worker.plan()
    CASES[name][1](worker, name, step, rows)
    time.sleep(30)
    return 3


if __name__ == "__main__":
    sys.exit(main())
