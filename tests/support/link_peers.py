"""Both ends of the link between coordinator and worker in plain Python, so that tests can say what no honest peer
says: packets of the attach socket, the two shared segments, plans and results as bytes. proto/*.h has the layouts."""
import array
import contextlib
import fcntl
import mmap
import os
import socket
import struct
import threading
import time

import msgpack

import sp_wire

PAIR = 0x10
F_ADD_SEALS, SEALS = 1033, 0x10 | 0x2 | 0x4 | 0x1  # FUTURE_WRITE, SHRINK, GROW, SEAL
PAGE = 4096
STATE_OFFSET, PUBLISHED_OFFSET, ALIVE_OFFSET = 1024, 1152, PAGE
HEADER = struct.Struct("<QIIQQ16sQQQ12IQ")  # to the end of the extents
SECTION = struct.Struct("<IIQQ")
SLOT_ROW = struct.Struct("<IIIIQfff20x")
COORDINATOR_MAGIC = 0x4f4f434d45444e54
TYPE, INSTANCE, EPOCH, STEP, LAYOUT, ROWS = 1, 2, 3, 4, 5, 6
HELLO, ATTACH, STANDBY, REFUSED = 1, 2, 3, 4
PLAN, READY, RESULT, PLAN_REFUSED, DRAINED, FATAL = 1, 16, 17, 18, 19, 20
SAMPLE, FROM_LAST_SAMPLE = 1, 2


def unpack(body):
    return msgpack.unpackb(body, raw=False, strict_map_key=False)


def sealed(contents, seals=SEALS):
    """A memfd with these bytes and a map that may still be written; sealed against all others."""
    descriptor = os.memfd_create("peer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, len(contents))
    memory = mmap.mmap(descriptor, len(contents)) if len(contents) else None
    if memory is not None:
        memory[:] = contents
    if seals:
        fcntl.fcntl(descriptor, F_ADD_SEALS, seals)
    return descriptor, memory


def contents_of(descriptor):
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def send_packet(connection, packet, descriptors=()):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    connection.sendmsg([packet], rights)


def receive_packet(connection):
    """(packet, descriptors); an empty packet is the end."""
    packet, control, _, _ = connection.recvmsg(PAGE, socket.CMSG_SPACE(8 * 4))
    descriptors = array.array("i")
    for level, kind, rights in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(rights[:len(rights) // 4 * 4])
    return packet, list(descriptors)


def column(values, code="I"):
    return struct.pack(f"<{len(values)}{code}", *values)


def numbers(blob):
    return list(struct.unpack(f"<{len(blob) // 4}I", blob))


class FakeCoordinator:
    """Waits for one real worker in a run directory of its own and is its coordinator."""

    def __init__(self, run_dir):
        self.run_dir, self.epoch, self.link, self.listener, self.memory = run_dir, 0, None, None, None
        self.instance = b"\x07" * 16
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.door.settimeout(20)
        self.door.bind(os.path.join(run_dir, "attach.sock"))
        self.door.listen(4)
        self.connection = None

    def welcome(self):
        """Takes the next hello: (fields, bytes of the worker's segment)."""
        self.connection, _ = self.door.accept()
        self.connection.settimeout(20)
        packet, descriptors = receive_packet(self.connection)
        contents = contents_of(descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)
        self.hello = unpack(packet)
        return self.hello, contents

    def format_segment(self, slots=4, context=256, step_tokens=64, pool_blocks=64):
        """The bytes of a coordinator's segment for this epoch."""
        geometry = [self.hello[10][key] for key in range(1, 7)]
        layers, block_tokens = geometry[0], geometry[3]
        logical = -(-context // block_tokens)
        shapes = ((1, SLOT_ROW.size), (2, 4 * context), (3, 4 * layers * logical))
        sections, end = b"", PAGE
        self.offsets = {}
        for kind, stride in shapes:
            sections += SECTION.pack(kind, stride, end, slots)
            self.offsets[kind] = end
            end += -(-stride * slots // PAGE) * PAGE
        sections += SECTION.pack(0, 0, 0, 0)
        self.extents = dict(slots=slots, context=context, step_tokens=step_tokens, pool_blocks=pool_blocks,
                            layers=layers, block_tokens=block_tokens, logical=logical, vocabulary=self.hello[14])
        head = HEADER.pack(COORDINATOR_MAGIC, 1, PAGE, end, self.hello[4], self.instance, self.epoch, os.getpid(), 1,
                           *geometry, slots, context, logical, self.hello[14], step_tokens, 0, pool_blocks)
        contents = bytearray(end)
        contents[:len(head)] = head
        contents[len(head):len(head) + len(sections)] = sections
        struct.pack_into("<Q", contents, STATE_OFFSET, 1)
        table = self.offsets[3]
        contents[table:table + 4 * layers * logical * slots] = b"\xff" * (4 * layers * logical * slots)
        return contents

    def attach(self, contents, seals=SEALS):
        """Answers the hello with this segment; the socket of the epoch is listening before."""
        path = os.path.join(self.run_dir, f"worker.{self.epoch}.ipc")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.settimeout(20)
        self.listener.bind(path)
        self.listener.listen(1)
        descriptor, self.memory = sealed(contents, seals)
        answer = {TYPE: ATTACH, 2: self.instance, 3: self.epoch, 4: 1, 5: f"ipc://{path}"}
        send_packet(self.connection, msgpack.packb(answer), [descriptor])
        os.close(descriptor)

    def accept_link(self):
        """Until the worker said ready."""
        self.link, _ = self.listener.accept()
        self.link.settimeout(20)
        self.link.sendall(sp_wire.HELLO.pack(b"\0SP\0", PAIR, 0))
        magic, protocol, _ = sp_wire.HELLO.unpack(sp_wire.read_exactly(self.link, sp_wire.HELLO.size))
        assert (magic, protocol) == (b"\0SP\0", PAIR), (magic, protocol)
        ready = self.report()
        assert ready[TYPE] == READY, ready

    def begin(self, **extents):
        """A whole attachment with a segment of these extents."""
        self.epoch += 1
        self.welcome()
        self.attach(self.format_segment(**extents))
        self.accept_link()

    def write(self, offset, form, *values):
        struct.pack_into("<" + form, self.memory, offset, *values)

    def write_slot_row(self, slot, **changes):
        row = dict(generation=1, prompt=20, limit=200, top_k=0, seed=1, temperature=0.0, top_p=1.0, min_p=0.0)
        assert set(changes) <= set(row), changes
        row.update(changes)
        SLOT_ROW.pack_into(self.memory, self.offsets[1] + slot * SLOT_ROW.size, *row.values())

    def write_tokens(self, slot, tokens, first=0):
        self.write(self.offsets[2] + 4 * (slot * self.extents["context"] + first), f"{len(tokens)}I", *tokens)

    def write_blocks(self, slot, layer, blocks, first=0):
        entries = self.extents
        index = (slot * entries["layers"] + layer) * entries["logical"] + first
        self.write(self.offsets[3] + 4 * index, f"{len(blocks)}i", *blocks)

    def publish(self, step):
        self.write(PUBLISHED_OFFSET, "Q", step)

    def plan(self, rows, step=1, **others):
        """`rows`: (slot, generation, first position, count, flags). `others`: fields by number as f9=..."""
        fields = {TYPE: PLAN, INSTANCE: self.instance, EPOCH: self.epoch, STEP: step, LAYOUT: 1, ROWS: len(rows)}
        for key in range(5):
            fields[7 + key] = column([row[key] for row in rows])
        fields.update({int(name[1:]): value for name, value in others.items()})
        return msgpack.packb({key: value for key, value in fields.items() if value is not None})

    def send(self, body):
        sp_wire.send_frame(self.link, body)

    def report(self):
        return unpack(sp_wire.receive_frame(self.link))

    def end(self):
        """The connection and the link end, as when a coordinator dies; the worker comes again."""
        for part in (self.connection, self.link, self.listener):
            if part is not None:
                part.close()
        self.connection = self.link = self.listener = None

    def close(self):
        self.end()
        self.door.close()


class FakeWorker:
    """Attaches to a real coordinator with the hello of a real worker. The coordinator kills the process of a worker
    that it fences: run it in a process of its own (lying_worker.py)."""

    def __init__(self, run_dir, hello, segment, descriptors=None, **changes):
        self.run_dir = run_dir
        self.hello = dict(hello)
        self.hello.update({int(name[1:]): value for name, value in changes.items()})
        descriptor, self.memory = sealed(segment)
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(20)
        self.connection.connect(os.path.join(run_dir, "attach.sock"))
        send_packet(self.connection, msgpack.packb(self.hello), [descriptor] if descriptors is None else descriptors)
        self.beating = threading.Event()
        self.beating.set()
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self):
        while True:
            if self.beating.is_set():
                struct.pack_into("<Q", self.memory, ALIVE_OFFSET, time.monotonic_ns())
            time.sleep(0.1)

    def answer(self):
        packet, descriptors = receive_packet(self.connection)
        self.terms = unpack(packet) if packet else None
        self.coordinator_segment = descriptors[0] if descriptors else None
        return self.terms

    def dial(self):
        self.link = socket.socket(socket.AF_UNIX)
        self.link.settimeout(20)
        self.link.connect(self.terms[5].removeprefix("ipc://"))
        self.link.sendall(sp_wire.HELLO.pack(b"\0SP\0", PAIR, 0))
        sp_wire.read_exactly(self.link, sp_wire.HELLO.size)

    def envelope(self, kind, **fields):
        found = {TYPE: kind, INSTANCE: self.terms[2], EPOCH: self.terms[3]}
        found.update({int(name[1:]): value for name, value in fields.items()})
        return {key: value for key, value in found.items() if value is not None}

    def send(self, fields):
        sp_wire.send_frame(self.link, fields if isinstance(fields, bytes) else msgpack.packb(fields))

    def ready(self):
        self.send(self.envelope(READY))

    def plan(self):
        """The next plan: (step, rows)."""
        order = unpack(sp_wire.receive_frame(self.link))
        assert order[TYPE] == PLAN, order
        return order[STEP], list(zip(*(numbers(order[key]) for key in range(7, 12))))

    def honest_rows(self, rows):
        """What a result would name: [slot, generation, position, token, logprob, flags]."""
        return [[slot, generation, first + count, 1000, -1.0, 0]
                for slot, generation, first, count, flags in rows if flags & SAMPLE]

    def result(self, step, rows, **others):
        fields = {f"f{STEP}": step, f"f{LAYOUT}": 1, f"f{ROWS}": len(rows)}
        for place, code in enumerate("IIIIfI"):
            fields[f"f{7 + place}"] = column([row[place] for row in rows], code)
        fields["f14"] = {3: 1000}
        fields.update(others)
        return self.envelope(RESULT, **fields)
