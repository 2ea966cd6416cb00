"""Peers of the link that lie: workers whose hello, segment and results are wrong in every way, a coordinator whose
segment and plans are. Each lie has a named end, and what comes after it works with the bits of an undisturbed run."""
import collections
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import msgpack

from tandem_harness import (BIN, EXIT_CONFIGURATION, EXIT_TEMPORARY, PATIENCE, Process, Streams, TandemTest, main,
                            model_path, sp_wire, wait_for)
import link_peers
import lying_worker

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support")
VICTIMS = 4
NOBODY = 65534
GROWTH_BYTES_MAX = (16 << 20) * (1 if PATIENCE == 1 else 16)  # sanitizers keep freed memory for a while
HELLO_FIELDS = {2: "version_min", 3: "version_max", 4: "layout", 5: "build", 6: "backend", 7: "arithmetic",
                8: "metadata_hash", 9: "tensor_hash", 10: "geometry", 11: "blocks", 12: "slots", 13: "context",
                14: "vocabulary", 15: "step_tokens", 16: "pid", 17: "start_time"}
GEOMETRY_FIELDS = range(1, 7)


class RealWorker:
    """A worker whose coordinator is the test."""

    def __init__(self, log_folder, *options):
        self.run_dir = tempfile.mkdtemp(prefix="tandem-fake-", dir=log_folder)
        self.coordinator = link_peers.FakeCoordinator(self.run_dir)
        self.process = Process("worker", [os.path.join(BIN, "tandem-worker"), "--run-dir", self.run_dir, "--model",
                                          model_path("tiny"), "--kv-pool-bytes", "64M", "--debug-logits-hash",
                                          "--threads", "1", *options],
                               os.path.join(log_folder, f"real-worker-{os.path.basename(self.run_dir)}.log"))


class LyingWorkers(TandemTest):
    kept = []

    def setUp(self):
        super().setUp()
        self.coordinator = self.system.start_coordinator("--slots", "8")
        real = RealWorker(self.system.folder)
        self.system.processes.append(real.process)
        self.hello, self.segment = real.coordinator.welcome()
        real.process.kill()
        real.coordinator.close()
        self.record = os.path.join(self.system.folder, "record")
        with open(self.record, "wb") as file:
            file.write(msgpack.packb([self.hello, self.segment]))

    def start_liar(self, name):
        return subprocess.Popen([sys.executable, os.path.join(SUPPORT, "lying_worker.py"), self.system.run_dir,
                                 self.record, name], stdout=subprocess.PIPE, text=True,
                                env=dict(os.environ, PYTHONPATH=SUPPORT))

    def victims(self):
        return {f"victim-{number}": dict(prompt="a quiet river " * (1 + number), max_tokens=20, ignore_eos=True,
                                         temperature=0.7 * (number % 2), seed=5) for number in range(VICTIMS)}

    def assert_found(self, name, client):
        lost = len(self.coordinator.events("worker_lost"))
        liar = self.start_liar(name)
        try:
            event = self.coordinator.wait_event("worker_lost", lost + 1, 20)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
        self.assertEqual(event["reason"], lying_worker.CASES[name][0], f"{name}: {event}")
        self.assertIn(liar.wait(20), (-signal.SIGKILL, 1), name)  # 1: cut off before it was killed
        liar.stdout.close()
        self.assertTrue(client.ask(type="health")["live"], name)

    def test_lies_after_an_answer(self):
        """A result that is shown counts once, and the message has to say the same."""
        client = self.system.client()
        for accepted, name in enumerate(lying_worker.AFTER_AN_ANSWER, 1):
            client.submit(name, prompt="a quiet river", max_tokens=20, ignore_eos=True, detach=True)
            self.assert_found(name, client)
            self.assertEqual(self.system.stats()["completion_tokens"], accepted)
            client.ask(type="cancel", id=name)
        self.assert_serves()

    def test_results_that_lie(self):
        """The same requests live through all liars."""
        worker = self.system.start_worker()
        client = self.system.client()
        expected = {name: client.generate(f"calm-{name}", **fields).outcome()
                    for name, fields in self.victims().items()}
        worker.kill()
        streams = Streams(self.system)
        for name, fields in self.victims().items():
            streams.start(name, **fields)
        memory = self.coordinator.resident_bytes()
        for name in lying_worker.CASES:
            if name not in lying_worker.AFTER_AN_ANSWER:
                self.assert_found(name, client)
        wait_for(lambda: self.system.stats()["epochs_abandoned"] == 0, 10, "burials")
        self.assertLess(self.coordinator.resident_bytes() - memory, GROWTH_BYTES_MAX)
        self.system.start_worker()
        answers = streams.join()
        for name, outcome in expected.items():
            self.assertEqual(answers[name].outcome(), outcome)
        stats = self.system.stats()
        self.assertEqual(stats["requests_failed"], 0)
        self.assertGreaterEqual(stats["messages_stale"], 3)
        self.assertEqual(self.coordinator.events("request_poisoned"), [])

    def refusal_of(self, hello, descriptors):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(20)
        connection.connect(os.path.join(self.system.run_dir, "attach.sock"))
        link_peers.send_packet(connection, hello if isinstance(hello, bytes) else msgpack.packb(hello), descriptors)
        packet, passed = link_peers.receive_packet(connection)
        for descriptor in passed:
            os.close(descriptor)
        answer = link_peers.unpack(packet)
        if answer[1] != link_peers.REFUSED:
            self.kept.append(connection)  # its end would be the end of this process
        self.assertEqual(answer[1], link_peers.REFUSED, f"{hello}: {answer}")
        connection.close()
        return REASONS[answer[2]], answer[3]

    def test_hello_with_every_field_wrong(self):
        descriptor, _ = link_peers.sealed(self.segment)
        for key, field in HELLO_FIELDS.items():
            honest = self.hello[key]
            text = isinstance(honest, str)
            wrong = [None, [], {1: 1}, -1, -2 ** 62, 1.5, True]
            wrong += [5, b"\xff\xfe", "x" * 200] if text else ["text"]
            if field in ("metadata_hash", "tensor_hash"):
                wrong += [b"short", b"x" * 17]
            for value in wrong:
                reason, message = self.refusal_of({**self.hello, key: value}, [descriptor])
                self.assertEqual((reason, field in message), ("malformed", True), f"{field} {value!r}: {message}")
            missing = {other: value for other, value in self.hello.items() if other != key}
            reason, message = self.refusal_of(missing, [descriptor])
            self.assertEqual((reason, field in message), ("malformed", True), f"no {field}: {message}")
        for key in GEOMETRY_FIELDS:
            for value, reasons in ((0, ("malformed",)), (2 ** 32 - 1, ("malformed", "geometry")), ("x", ("malformed",)),
                                   (None, ("malformed",)), (self.hello[10][key] + 1, ("geometry",))):
                if key == 6 and value == 2:
                    continue  # the order is the backend's own: one of two
                changed = {**self.hello[10], key: value}
                reason, message = self.refusal_of({**self.hello, 10: changed}, [descriptor])
                self.assertIn(reason, reasons, f"geometry {key} {value}: {message}")
        for key, value, expected in ((2, 99, "malformed"), (11, 2 ** 40, "malformed"), (11, 2, "capacity"),
                                     (12, 1, "capacity"), (13, 1, "capacity"), (15, 1, "capacity"),
                                     (14, 5, "geometry"), (14, 2 ** 31, "malformed"), (8, b"x" * 16, "model"),
                                     (4, 1, "version")):
            reason, message = self.refusal_of({**self.hello, key: value}, [descriptor])
            self.assertIn(reason, (expected, "version"), f"{HELLO_FIELDS[key]} {value}: {message}")
        os.close(descriptor)
        self.assert_serves()

    def test_packets_that_are_no_hello(self):
        descriptor, _ = link_peers.sealed(self.segment)
        hello = msgpack.packb(self.hello)
        for packet in (b"\xc0", b"\x80", hello[:-1], hello + b"\0", b"\x81\x01" + b"\x91" * 4000 + b"\x01",
                       b"\xdf\xff\xff\xff\xff", hello + bytes(5000), bytes(4096), os.urandom(500)):
            self.assertEqual(self.refusal_of(packet, [descriptor])[0], "malformed", packet[:40])
        self.assertEqual(self.refusal_of(hello, [descriptor] * 3)[0], "malformed")
        os.close(descriptor)
        self.assert_serves()

    def test_segments_that_lie(self):
        before = self.coordinator.descriptors()
        header_lies = [(offset, b"\xff" * 8) for offset in range(0, 32, 8)] + [(12, b"\0\0\0\0"), (16, bytes(8)),
                                                                              (1024, bytes(8)), (1024, b"\x02")]
        sections = link_peers.HEADER.size
        header_lies += [(sections + offset, b"\xff" * 4) for offset in range(0, 24, 4)]
        for offset, lie in header_lies:
            contents = bytearray(self.segment)
            contents[offset:offset + len(lie)] = lie
            self.assert_segment_refused(contents)
        for contents in (b"", self.segment[:100], self.segment[:4096], self.segment + bytes(4096), bytes(1 << 20)):
            self.assert_segment_refused(contents)
        for seals in (0, 0x10, 0x10 | 0x2, 0x10 | 0x2 | 0x4, 0x2 | 0x4 | 0x1):
            self.assert_segment_refused(self.segment, seals)
        for path in ("/dev/zero", "/dev/null", "/proc/self/mem", self.record):
            with open(path, "rb") as file:
                self.assertEqual(self.refusal_of(self.hello, [file.fileno()])[0], "segment", path)
        self.assertEqual(self.refusal_of(self.hello, [])[0], "segment")
        wait_for(lambda: self.coordinator.descriptors() <= before, 5, "no descriptor is kept")
        self.assert_serves()

    def assert_segment_refused(self, contents, seals=link_peers.SEALS):
        descriptor, memory = link_peers.sealed(contents, seals)
        reason, message = self.refusal_of(self.hello, [descriptor])
        self.assertIn(reason, ("segment", "version"), message)
        os.close(descriptor)
        if memory is not None:
            memory.close()

    def assert_serves(self):
        self.system.start_worker()
        answer = self.system.client().generate("after", prompt="a quiet river", max_tokens=5, ignore_eos=True)
        self.assertEqual(len(answer.tokens), 5)

    def silenced(self):
        return sum(int(count) for count in
                   re.findall(r" event=hangups_silenced connections=(\d+)", self.coordinator.log()))

    def test_worker_that_attaches_and_dies_in_a_loop(self):
        """Hundreds of attachments: the coordinator stays small and answers, and says so in few lines."""
        client = self.system.client()
        client.submit("waits", prompt="a quiet river", max_tokens=20, ignore_eos=True, detach=True)
        script = ("import os, sys, lying_worker\n"
                  "for _ in range(int(sys.argv[3])):\n"
                  "    if os.fork() == 0:\n"
                  "        worker = lying_worker.attach(sys.argv[1], sys.argv[2])\n"
                  "        if worker.answer()[1] == 2: worker.dial(); worker.ready()\n"
                  "        os._exit(1)\n"
                  "    os.wait()\n")
        before = (self.coordinator.descriptors(), len(os.listdir(f"/proc/{self.coordinator.pid}/task")))
        memory, log = self.coordinator.resident_bytes(), len(self.coordinator.log())
        started = time.monotonic()
        rounds = 400
        loop = subprocess.Popen([sys.executable, "-c", script, self.system.run_dir, self.record, str(rounds)],
                                env=dict(os.environ, PYTHONPATH=SUPPORT))
        slowest = 0.0
        while loop.poll() is None:
            asked = time.monotonic()
            self.assertTrue(client.ask(type="health")["live"])
            slowest = max(slowest, time.monotonic() - asked)
            time.sleep(0.02)
        self.assertEqual(loop.returncode, 0)
        seconds = time.monotonic() - started
        wait_for(lambda: self.system.stats()["epochs_abandoned"] == 0, 20, "end of all epochs")
        written = self.coordinator.log()[log:]
        lines = written.count("\n")
        attached = self.system.stats()["workers_attached"]
        print(f"{attached} attachments in {seconds:.1f} s, {lines} lines, slowest health {1000 * slowest:.0f} ms",
              file=sys.stderr)
        self.assertGreater(attached, rounds // 4)
        self.assertLess(slowest, 1 * PATIENCE)
        # common/log.h: 100 lines of an event in a window of 10 s, and a window may have begun before.
        windows = 2 + int((time.monotonic() - started) / 10)
        for event, count in collections.Counter(re.findall(r" event=(\w+) ", written)).items():
            self.assertLessEqual(count, 100 * windows, event)
        self.assertLess(lines, rounds)  # of two or more for each attachment
        # But for those that nng forgot and the coordinator silenced (coordinator/hangup_sweep.h), which it counts.
        wait_for(lambda: self.coordinator.descriptors() <= before[0] + 2 + self.silenced(), 20, "descriptors come back")
        self.assertLessEqual(len(os.listdir(f"/proc/{self.coordinator.pid}/task")), before[1] + 1)
        if PATIENCE == 1:
            self.assertLess(self.coordinator.resident_bytes() - memory, GROWTH_BYTES_MAX)
        self.system.start_worker()
        self.assertEqual(len(client.follow("waits").tokens), 20)

    def test_strangers_of_another_user_keep_no_worker_away(self):
        if os.getuid() != 0:
            return  # one user cannot pose as another
        os.chmod(self.system.folder, 0o755)
        script = ("import socket, sys, time\n"
                  "end = time.monotonic() + 8\n"
                  "while time.monotonic() < end:\n"
                  "    silent = []\n"
                  "    for _ in range(40):\n"
                  "        stranger = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
                  "        stranger.setblocking(False)\n"
                  "        try:\n"
                  "            stranger.connect(sys.argv[1])\n"
                  "        except OSError:\n"
                  "            pass\n"
                  "        silent.append(stranger)\n"
                  "    time.sleep(0.3)\n")
        crowd = subprocess.Popen(["setpriv", f"--reuid={NOBODY}", "--regid=0", "--clear-groups", sys.executable, "-c",
                                  script, os.path.join(self.system.run_dir, "attach.sock")])
        time.sleep(0.5)
        worker = self.system.start_worker(wait=False)
        worker.wait_event("worker_attached", seconds=5)
        self.assertIsNone(crowd.poll())
        crowd.kill()
        crowd.wait()

    def test_packets_after_the_hello(self):
        """An attached worker that talks on costs no more than the packets it sends."""
        script = ("import sys, time, lying_worker\n"
                  "worker = lying_worker.attach(sys.argv[1], sys.argv[2])\n"
                  "worker.answer(); worker.dial(); worker.ready()\n"
                  "end = time.monotonic() + 2\n"
                  "while time.monotonic() < end:\n"
                  "    worker.connection.send(b'x' * 4096)\n"
                  "print('done', flush=True)\n"
                  "time.sleep(30)\n")
        talker = subprocess.Popen([sys.executable, "-c", script, self.system.run_dir, self.record],
                                  env=dict(os.environ, PYTHONPATH=SUPPORT), stdout=subprocess.PIPE, text=True)
        client = self.system.client()
        slowest = 0.0
        reader = threading.Thread(target=talker.stdout.readline)
        reader.start()
        while reader.is_alive():
            asked = time.monotonic()
            client.ask(type="health")
            slowest = max(slowest, time.monotonic() - asked)
        self.assertLess(slowest, 1 * PATIENCE)
        cpu = self.coordinator.cpu_ms()
        time.sleep(2)
        self.assertLessEqual(self.coordinator.cpu_ms() - cpu, 100 * PATIENCE)
        talker.kill()
        talker.wait()
        talker.stdout.close()
        self.assert_serves()


REASONS = {1: "version", 2: "model", 3: "arithmetic", 4: "geometry", 5: "capacity", 6: "uid", 7: "segment",
           8: "malformed", 9: "standbys", 10: "abandoned", 11: "draining"}
REFUSALS = {1: "malformed", 2: "no_rows", 3: "slot_range", 4: "slot_repeated", 5: "generation", 6: "count",
            7: "context", 8: "flags", 9: "last_sample", 10: "budget", 11: "step", 12: "unpublished", 13: "position",
            14: "token", 15: "block", 16: "parameters", 17: "fenced"}
GOOD_ROW = (1, 1, 0, 20, 1)
U32_MAX = 2 ** 32 - 1
NAN, INFINITY = float("nan"), float("inf")
# Rows of a plan that stand alone in it, and the refusal.
WRONG_ROWS = [
    ((4, 1, 0, 20, 1), "slot_range"), ((1023, 1, 0, 20, 1), "slot_range"), ((U32_MAX, 1, 0, 20, 1), "slot_range"),
    ((2 ** 31, 1, 0, 20, 1), "slot_range"), ((1, 0, 0, 20, 1), "generation"), ((1, 2, 0, 20, 1), "generation"),
    ((1, U32_MAX, 0, 20, 1), "generation"), ((0, 1, 0, 20, 1), "generation"), ((1, 1, 1, 20, 1), "position"),
    ((1, 1, 16, 4, 1), "position"), ((1, 1, U32_MAX, 1, 1), "context"), ((1, 1, 2 ** 31, 2 ** 31, 0), "context"),
    ((1, 1, 255, 1, 1), "context"), ((1, 1, 256, 1, 0), "context"), ((1, 1, 0, 0, 1), "count"),
    ((1, 1, 0, U32_MAX, 1), "context"), ((1, 1, 0, 65, 1), "budget"), ((1, 1, 0, 20, 4), "flags"),
    ((1, 1, 0, 20, U32_MAX), "flags"), ((1, 1, 0, 20, 3), "last_sample"), ((1, 1, 0, 1, 3), "last_sample"),
]
WRONG_PARAMETERS = [dict(temperature=NAN), dict(temperature=INFINITY), dict(temperature=-1.0), dict(temperature=1e9),
                    dict(top_p=0.0), dict(top_p=NAN), dict(top_p=1.5), dict(min_p=-0.1), dict(min_p=NAN),
                    dict(top_k=U32_MAX), dict(prompt=0), dict(prompt=200), dict(limit=257), dict(limit=U32_MAX),
                    dict(prompt=U32_MAX)]


class LyingCoordinator(TandemTest):
    """One real worker lives through all of it: each refused plan ends the epoch, and it attaches again."""

    def setUp(self):
        super().setUp()
        real = RealWorker(self.system.folder)
        self.system.processes.append(real.process)
        self.worker, self.fake = real.process, real.coordinator
        self.addCleanup(self.fake.close)

    def begin(self, **row):
        """A new attachment with a good tenant in slot 1."""
        self.fake.begin()
        self.fake.write_slot_row(1, **row)
        self.fake.write_tokens(1, range(1000, 1020))
        for layer in range(self.fake.extents["layers"]):
            self.fake.write_blocks(1, layer, [layer * 2, layer * 2 + 1])
        self.fake.publish(1)

    def assert_refused(self, body, reason):
        self.fake.send(body)
        report = self.fake.report()
        self.assertEqual(report[1], link_peers.PLAN_REFUSED, f"{reason}: {report}")
        self.assertEqual(REFUSALS[report[6]], reason, report)
        self.fake.end()

    def good_plan(self):
        """The same plan always gives the same bits."""
        self.begin()
        self.fake.send(self.fake.plan([GOOD_ROW]))
        result = self.fake.report()
        self.assertEqual(result[1], link_peers.RESULT, result)
        self.fake.end()
        return result[10], result[13]

    def test_plans_with_every_index_wrong(self):
        expected = self.good_plan()
        for row, reason in WRONG_ROWS:
            with self.subTest(row=row):
                self.begin()
                self.assert_refused(self.fake.plan([row]), reason)
        for changes in WRONG_PARAMETERS:
            with self.subTest(changes=changes):
                self.begin(**changes)
                self.assert_refused(self.fake.plan([GOOD_ROW]), "parameters")
        layers = self.fake.extents["layers"]
        for layer in range(layers):
            for block in (-1, -2, 64, 2 ** 31 - 1, -2 ** 31):
                for place in (0, 1):
                    self.begin()
                    self.fake.write_blocks(1, layer, [block], place)
                    self.assert_refused(self.fake.plan([GOOD_ROW]), "block")
        for token in (49152, 2 ** 31, U32_MAX):
            for position in (0, 19):
                self.begin()
                self.fake.write_tokens(1, [token], position)
                self.assert_refused(self.fake.plan([GOOD_ROW]), "token")
        self.assertEqual(self.good_plan(), expected)
        self.assertEqual(len(self.worker.events("model_loaded")), 1)

    def test_plans_that_are_wrong_as_a_whole(self):
        expected = self.good_plan()
        self.begin()
        wrong = [((self.fake.plan([GOOD_ROW], step=step)), "step") for step in (2, 3, 2 ** 64 - 1)]
        wrong += [(self.fake.plan([]), "no_rows"), (self.fake.plan([GOOD_ROW, GOOD_ROW]), "slot_repeated"),
                  (self.fake.plan([GOOD_ROW] * 1024), "slot_repeated")]
        column = link_peers.column
        for change in (dict(f6=2), dict(f6=U32_MAX), dict(f7=column([1, 2])), dict(f7=b""), dict(f8=b"\1\0\0"),
                       dict(f9=None), dict(f10="text"), dict(f11=[1]), dict(f5=2), dict(f4=0), dict(f4="x"),
                       dict(f4=None), dict(f2=b"short"), dict(f3=0), dict(f1=99), dict(f1=17)):
            wrong.append((self.fake.plan([GOOD_ROW], **change), "malformed"))
        for body in (b"", b"\xc0", b"\x80", b"\xdd\x0f\x00\x00\x00", b"\x81\x01" + b"\x91" * 10000 + b"\x01",
                     bytes(5000), b"\xdf\xff\xff\xff\xff" + bytes(1000)):
            wrong.append((body, "malformed"))
        self.fake.end()
        for body, reason in wrong:
            self.begin()
            if body and b"\x02\xc4\x10" in body:  # the epoch of now
                fields = link_peers.unpack(body)
                if fields.get(3) not in (0, None):
                    fields[3] = self.fake.epoch
                    body = msgpack.packb(fields)
            self.assert_refused(body, reason)
        self.begin()
        self.fake.publish(0)
        self.assert_refused(self.fake.plan([GOOD_ROW]), "unpublished")
        self.assertEqual(self.good_plan(), expected)
        self.begin()
        self.fake.write(link_peers.STATE_OFFSET, "Q", 2)
        self.assert_refused(self.fake.plan([GOOD_ROW]), "fenced")
        self.assertEqual(self.worker.exit_code(), EXIT_TEMPORARY)

    def test_second_steps_that_do_not_follow(self):
        expected = self.good_plan()
        for row, reason in (((1, 1, 0, 20, 1), "position"), ((1, 1, 21, 1, 1), "position"), ((1, 1, 21, 1, 3), "position"),
                            ((1, 1, 19, 1, 3), "position"), ((1, 0, 20, 1, 1), "generation"),
                            ((1, 1, 20, 64, 1), "block")):
            self.begin()
            self.fake.send(self.fake.plan([GOOD_ROW]))
            self.assertEqual(self.fake.report()[1], link_peers.RESULT)
            self.fake.publish(2)
            self.assert_refused(self.fake.plan([row], step=2), reason)
        # Two tenants of one block; and what is true is still accepted.
        self.begin()
        self.fake.write_slot_row(2)
        self.fake.write_tokens(2, range(1000, 1020))
        for layer in range(self.fake.extents["layers"]):
            self.fake.write_blocks(2, layer, [layer * 2, layer * 2 + 9])
        self.assert_refused(self.fake.plan([GOOD_ROW, (2, 1, 0, 20, 1)]), "block")
        self.begin()
        self.fake.send(self.fake.plan([GOOD_ROW]))
        self.assertEqual(self.fake.report()[1], link_peers.RESULT)
        self.fake.publish(2)
        self.fake.send(self.fake.plan([(1, 1, 20, 1, 3)], step=2))
        self.assertEqual(self.fake.report()[1], link_peers.RESULT)
        self.fake.end()
        self.assertEqual(self.good_plan(), expected)

    def test_orders_of_another_epoch_change_nothing(self):
        expected = self.good_plan()
        self.begin()
        for change in (dict(f3=self.fake.epoch + 1), dict(f3=2 ** 64 - 1), dict(f2=b"y" * 16)):
            self.fake.send(self.fake.plan([GOOD_ROW], **change))
        self.fake.send(self.fake.plan([GOOD_ROW]))
        report = self.fake.report()
        self.assertEqual((report[1], report[10], report[13]), (link_peers.RESULT, *expected))
        self.fake.end()

    def test_floods_and_frames_that_do_not_come(self):
        expected = self.good_plan()
        memory = self.worker.resident_bytes()
        for length in (2 ** 64 - 32, 2 ** 40, 1 << 20, 100):
            self.begin()
            self.fake.link.sendall(sp_wire.FRAME.pack(1, length))
            time.sleep(0.1)
            self.fake.end()
            self.assertEqual(self.good_plan(), expected)
        self.begin()
        body = self.fake.plan([GOOD_ROW])
        frame = sp_wire.FRAME.pack(1, len(body)) + body
        self.fake.link.settimeout(2)
        try:
            for _ in range(200):
                self.fake.link.sendall(frame * 100)
        except OSError:
            pass  # it stopped reading
        self.fake.end()
        self.assertEqual(self.good_plan(), expected)
        self.assertLess(self.worker.resident_bytes() - memory, GROWTH_BYTES_MAX)

    def next_worker(self):
        real = RealWorker(self.system.folder)
        self.system.processes.append(real.process)
        self.worker, self.fake = real.process, real.coordinator
        self.addCleanup(self.fake.close)

    def assert_leaves(self, what):
        self.assertIn(self.worker.exit_code(20), (EXIT_CONFIGURATION, EXIT_TEMPORARY), what)
        self.assertEqual(len(self.worker.events("attach_failed")), 1, what)
        self.assertEqual(len(self.worker.events("worker_attached")), 0, what)
        self.next_worker()

    def test_segments_that_lie(self):
        """The worker leaves with a sentence; it never computes on them."""
        header = [0, 8, 12, 16, 24, 32, 48, *range(72, 124, 4)]  # without the process that made it
        sections = [link_peers.HEADER.size + offset for offset in (0, 4, 8, 16, 24, 72)]
        changes = [(offset, b"\xff" * 4) for offset in header + sections] + [(link_peers.STATE_OFFSET, bytes(8))]
        for offset, lie in changes:
            self.fake.epoch += 1
            self.fake.welcome()
            contents = self.fake.format_segment()
            contents[offset:offset + len(lie)] = lie
            self.fake.attach(contents)
            self.assert_leaves(f"offset {offset}")
        for seals, size in ((0, None), (0x10, None), (0x2 | 0x4 | 0x1, None), (link_peers.SEALS, 100),
                            (link_peers.SEALS, 4096)):
            self.fake.epoch += 1
            self.fake.welcome()
            self.fake.attach(self.fake.format_segment()[:size], seals)
            self.assert_leaves(f"seals {seals} size {size}")

    def test_segments_of_another_shape(self):
        """Sound in themselves, but not what the worker has."""
        for changes in (dict(layers=3), dict(layers=1), dict(kv_heads=4), dict(head_dim=32), dict(head_dim=8),
                        dict(block_tokens=32), dict(type=2), dict(order=2), dict(slots=1024), dict(context=8192),
                        dict(step_tokens=65536), dict(pool_blocks=2 ** 26), dict(vocabulary=60000)):
            self.fake.epoch += 1
            self.fake.welcome()
            shape = {name: value for name, value in changes.items()
                     if name in ("slots", "context", "step_tokens", "pool_blocks")}
            for key, name in enumerate(("layers", "kv_heads", "head_dim", "block_tokens", "type", "order"), 1):
                self.fake.hello[10][key] = changes.get(name, self.fake.hello[10][key])
            self.fake.hello[14] = changes.get("vocabulary", self.fake.hello[14])
            if changes.get("layers") == 3:
                shape["pool_blocks"] = 63
            self.fake.attach(self.fake.format_segment(**shape))
            self.assert_leaves(changes)


if __name__ == "__main__":
    main()
