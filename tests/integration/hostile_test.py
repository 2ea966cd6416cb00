"""Clients that send what no client should, or do not read: the others never notice."""
import os
import socket
import struct
import time

from tandem_harness import BIN, PATIENCE, Process, TandemTest, main, model_path, sp_wire, wait_for

REQUEST = struct.pack(">I", 0x80000001)
# Each of the two would make an unguarded msgpack decoder reserve gigabytes.
BOMB_ARRAY = b"\xdd\x0f\x00\x00\x00"
BOMB_NESTED = b"".join(b"\xdd\x01\x00\x00\x00" for _ in range(31))
DEEP = b"\x81\x01" + b"\x91" * 10000 + b"\x01"
ROOM = 1 if PATIENCE == 1 else 16   # sanitizers keep freed memory for a while
GROWTH_BYTES_MAX = (32 << 20) * ROOM  # of the coordinator, whatever clients send
UNREAD_BYTES_MAX = (512 << 20) * ROOM  # 258 MiB were seen
DESCRIPTORS = 96             # of a coordinator that runs out of them


class Hostile(TandemTest):
    def setUp(self):
        super().setUp()
        self.coordinator = self.system.start_coordinator("--slots", "4")
        self.path = os.path.join(self.system.run_dir, "client.ipc")

    def connect(self, shake=True):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        connection.connect(self.path)
        if shake:
            sp_wire.shake_hands(connection, sp_wire.REQ)
        return connection

    def assert_alive(self, seconds=2):
        started = time.monotonic()
        client = self.system.client(seconds)
        self.assertTrue(client.ask(type="health")["live"])
        client.close()
        self.assertTrue(self.coordinator.running())
        return time.monotonic() - started

    def test_frames_that_announce_what_does_not_come(self):
        for length in (2 ** 64 - 32, 2 ** 63, 2 ** 40, 2 ** 32, 3 << 20):
            connection = self.connect()
            connection.sendall(struct.pack(">BQ", 1, length))
            try:
                self.assertEqual(connection.recv(1), b"", f"{length} was not cut off")
            except ConnectionResetError:
                pass
            connection.close()
            self.assert_alive()

    def test_half_frames_and_silence(self):
        halves = []
        for cut in (1, 5, 9, 12, 40):
            connection = self.connect()
            frame = struct.pack(">BQ", 1, 100) + REQUEST + bytes(96)
            connection.sendall(frame[:cut])
            halves.append(connection)
        mute = [self.connect(shake=False) for _ in range(5)]
        strange = self.connect(shake=False)
        strange.sendall(b"GET / HTTP/1.1\r\n\r\n")
        self.assert_alive()
        for connection in [*halves, *mute, strange]:
            connection.close()
        self.assert_alive(8)

    def poke(self, times):
        for _ in range(times):
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            try:
                connection.connect(self.path)
            except BlockingIOError:
                pass  # the listener is dead by now, and its queue full
            connection.close()
        # nng 1.5.2 may accept nobody from here on: who connected to the dead listener waits in vain and connects
        # again, which helps as soon as the self-test has found out and opened a new one.
        self.system.client(20, exchange_seconds=1).ask(type="health")

    def test_connect_and_close_does_not_end_the_service(self):
        survivor = self.system.client()
        self.assertTrue(survivor.ask(type="health")["live"])
        for times in (50, 1, 5, 200):
            self.poke(times)
            self.assertTrue(survivor.ask(type="health")["live"])  # old connections live on
        self.assertTrue(self.coordinator.running())
        self.assertLess(self.assert_alive(), 1)

    def test_messages_that_are_none(self):
        requester = sp_wire.Requester(self.path)
        for body in (b"", b"\x00", b"\xc1", BOMB_ARRAY, BOMB_NESTED, DEEP, b"\x80", b"\x81\x01\x63",
                     os.urandom(1000), b"\xde\xff\xff", bytes(1 << 20)):
            answer = sp_wire.msgpack.unpackb(requester.ask_bytes(body), raw=False,
                                             strict_map_key=False)
            self.assertEqual(answer.get(1, answer.get("type")) in (32, "error"), True, answer)
        requester.close()
        self.assert_alive()
        self.assertLess(self.coordinator.resident_bytes(), (200 << 20) * ROOM)
        self.assertGreaterEqual(self.system.stats()["messages_bad"], 10)

    def test_frame_without_a_request_id(self):
        for body in (b"", b"\x00\x00\x00\x01"):  # one each: the connection may be closed for it
            connection = self.connect()
            sp_wire.send_frame(connection, body)
            self.assert_alive()
            connection.close()

    def test_client_that_does_not_read(self):
        slow = self.connect()
        text = "word " * 150000
        question = sp_wire.msgpack.packb({"type": "tokenize", "prompt": text})
        for number in range(4):
            body = struct.pack(">I", 0x80000001 + number) + question
            try:
                sp_wire.send_frame(slow, body)
            except OSError:
                break  # it stopped reading from us in turn
        end = time.monotonic() + 5
        while time.monotonic() < end:
            self.assertLess(self.assert_alive(), 1)
            time.sleep(0.1)
        slow.close()

    def test_many_parked_polls_keep_nobody_waiting(self):
        client = self.system.client()
        client.submit("waits", prompt="no worker yet", max_tokens=5, ignore_eos=True)
        poll = sp_wire.msgpack.packb({"type": "next", "id": "waits", "max_wait_ms": 20000})
        parked = []
        for number in range(200):
            connection = self.connect()
            sp_wire.send_frame(connection, REQUEST + poll)
            parked.append(connection)
        wait_for(lambda: self.system.stats()["polls_parked"] >= 200, 10, "200 parked polls")
        for _ in range(20):
            self.assertLess(self.assert_alive(), 1)
        cancelled = client.ask(type="cancel", id="waits")
        self.assertEqual(cancelled["finish"]["reason"], "cancelled")
        for connection in parked:  # all of them learn it
            answer = sp_wire.msgpack.unpackb(sp_wire.receive_frame(connection)[4:], raw=False)
            self.assertEqual(answer["state"], "finished")
            connection.close()

    def test_client_that_hangs_up_is_forgotten(self):
        client = self.system.client()
        client.submit("waits", prompt="no worker yet", max_tokens=5, ignore_eos=True)
        poll = sp_wire.msgpack.packb({"type": "next", "id": "waits", "max_wait_ms": 20000})
        connection = self.connect()
        sp_wire.send_frame(connection, REQUEST + poll)
        wait_for(lambda: self.system.stats()["polls_parked"] == 1, 5, "a parked poll")
        connection.close()
        wait_for(lambda: self.system.stats()["polls_parked"] == 0, 5, "nobody polls")

    def assert_generates(self, name):
        answer = self.system.client(60).generate(name, prompt="a quiet river", max_tokens=5, ignore_eos=True)
        self.assertEqual(len(answer.tokens), 5)

    def test_prompts_as_large_as_they_get(self):
        """A frame above the limit is cut off; below it the answer has a name. Nobody else waits a second for it."""
        self.system.start_worker()
        before = self.coordinator.resident_bytes()
        for number, character in enumerate(("a", " ", "\n", "e\u0301", "\u65e5", "1", "'", "\U0001f600")):
            text = character * ((1 << 20) // len(character.encode()))
            cpu = self.coordinator.cpu_ms()
            refused = self.system.in_background(self.system.client(60).submit, f"same-{number}", prompt=text)
            while not refused.done():
                self.assertLess(self.assert_alive(), 1 * PATIENCE)
                time.sleep(0.02)  # asking is not what is measured
            self.assertEqual(refused.result()["code"], "prompt_too_long", repr(character))
            self.assertLess(self.coordinator.cpu_ms() - cpu, 2000 * PATIENCE, repr(character))
        answer = self.system.client().submit("above", prompt="a" * ((1 << 20) + 1))
        self.assertEqual((answer["code"], answer["limit"]), ("too_large", 1 << 20))
        connection = self.connect()
        try:
            sp_wire.send_frame(connection, REQUEST + sp_wire.msgpack.packb(
                {"type": "submit", "id": "huge", "prompt": "a" * (50 << 20)}))
            self.assertEqual(connection.recv(1), b"")
        except OSError:
            pass  # cut off in the middle
        connection.close()
        self.assert_generates("after")
        self.assertLess(self.coordinator.resident_bytes() - before, GROWTH_BYTES_MAX)

    def test_ten_thousand_queued_requests(self):
        client = self.system.client(60)
        before = self.coordinator.resident_bytes()
        for number in range(10000):
            accepted = client.submit(f"queued-{number}", prompt="wait", max_tokens=2, detach=True)
            self.assertEqual(accepted["type"], "accepted", accepted)
        refused = client.submit("one-more", prompt="wait", max_tokens=2)
        self.assertEqual(refused["code"], "overloaded")
        self.assertIn("10000", refused["message"])
        self.assertGreater(refused["retry_after_ms"], 0)
        self.assertEqual(client.ask(type="status", id="queued-9999")["queue_position"], 9999)
        self.assertLess(self.assert_alive(), 1)
        grown = self.coordinator.resident_bytes() - before
        self.assertLess(grown, (64 << 20) * ROOM)
        cpu = self.coordinator.cpu_ms()
        time.sleep(2)
        self.assertLessEqual(self.coordinator.cpu_ms() - cpu, 20 * PATIENCE)  # a queue costs no time
        for number in range(5000, 10000):
            client.ask(type="cancel", id=f"queued-{number}")
        self.system.start_worker()
        last = client.follow("queued-4999", seconds=120)
        self.assertEqual(last.finish["reason"], "length")
        self.assert_generates("after")

    def test_queued_bytes_have_a_bound(self):
        self.coordinator.kill()
        self.coordinator = self.system.start_coordinator("--queue-bytes", "8M")
        client = self.system.client(60)
        before = self.coordinator.resident_bytes()
        codes = [client.submit(f"big-{number}", ids=[5] * 4000, max_tokens=2).get("code") for number in range(1000)]
        self.assertEqual(set(codes), {None, "overloaded"})
        self.assertGreater(codes.count(None), 100)
        self.assertLess(self.coordinator.resident_bytes() - before, GROWTH_BYTES_MAX)
        for number in range(codes.index("overloaded")):
            client.ask(type="cancel", id=f"big-{number}")
        self.system.start_worker()
        self.assert_generates("after")

    def test_a_thousand_idle_connections(self):
        self.system.start_worker()
        before = self.coordinator.resident_bytes()
        idle = [self.connect() for _ in range(1000)]
        self.assertLess(self.assert_alive(), 1 * PATIENCE)
        self.assert_generates("beside")
        cpu = self.coordinator.cpu_ms()
        time.sleep(3)
        self.assertLessEqual(self.coordinator.cpu_ms() - cpu, 30 * PATIENCE)
        self.assertLess(self.coordinator.resident_bytes() - before, GROWTH_BYTES_MAX)
        descriptors = self.coordinator.descriptors()
        for connection in idle:
            connection.close()
        wait_for(lambda: self.coordinator.descriptors() <= descriptors - 1000, 10, "descriptors come back")
        self.assert_generates("after")

    def start_with_few_descriptors(self):
        self.coordinator.kill()
        log = os.path.join(self.system.folder, "few.log")
        self.coordinator = Process("coordinator", ["prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}",
                                                   os.path.join(BIN, "tandem-coordinator"), "--run-dir",
                                                   self.system.run_dir, "--model", model_path("tiny"),
                                                   "--kv-pool-bytes", "64M"], log)
        self.system.processes.append(self.coordinator)
        self.coordinator.wait_event("coordinator_ready")

    def test_descriptors_run_out(self):
        self.start_with_few_descriptors()
        self.system.start_worker()
        friend = self.system.client()
        self.assertTrue(friend.ask(type="health")["live"])
        crowd = []
        for _ in range(3 * DESCRIPTORS):
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            try:
                connection.connect(self.path)
            except OSError:
                pass  # the backlog is full as well
            crowd.append(connection)
        self.addCleanup(lambda: [connection.close() for connection in crowd])
        wait_for(lambda: self.coordinator.descriptors() >= DESCRIPTORS - 2, 10, "no descriptor is left")
        cpu, lines = self.coordinator.cpu_ms(), self.coordinator.log().count("\n")
        time.sleep(4)
        self.assertLess(self.coordinator.cpu_ms() - cpu, 1600 * PATIENCE)  # 40 % of a core
        self.assertLess(self.coordinator.log().count("\n") - lines, 100)
        answer = friend.generate("amid", prompt="a quiet river", max_tokens=20, ignore_eos=True)
        self.assertEqual(len(answer.tokens), 20)  # who is in is served
        for connection in crowd:
            connection.close()
        # As after connect and close: a self-test finds out whether the listener lives.
        self.system.client(30, exchange_seconds=1).ask(type="health")
        self.assert_generates("after")
        self.system.start_worker(wait=False).wait_event("worker_standby")

    def test_client_that_vanishes_in_the_middle_of_a_stream(self):
        self.coordinator.kill()
        self.coordinator = self.system.start_coordinator("--orphan-ms", str(int(1500 * PATIENCE)))
        self.system.start_worker()
        other = self.system.client()
        for number in range(20):
            client = self.system.client()
            client.submit(f"gone-{number}", prompt="a", max_tokens=3900, ignore_eos=True)
            client.follow(f"gone-{number}", enough=number)
            poll = sp_wire.msgpack.packb({"type": "next", "id": f"gone-{number}", "hold_tokens": 3000})
            sp_wire.send_frame(client.requester.connection, REQUEST + poll)
            client.close()
        wait_for(lambda: other.ask(type="stats")["requests_running"] == 0, 10, "nothing runs for nobody")
        for number in range(20):
            self.assertEqual(other.follow(f"gone-{number}").finish["reason"], "cancelled")
        stats = other.ask(type="stats")
        self.assertEqual((stats["polls_parked"], stats["blocks_held"], stats["slots_held"]), (0, 0, 0))
        self.assert_generates("after")

    def ask_and_never_read(self, question, times):
        """40 connections (fewer of a slower build) that send a question so many times each."""
        before = self.coordinator.resident_bytes()
        mute = []
        for place in range(int(40 / PATIENCE)):
            if place % 8 == 7:
                self.assert_alive(10)  # it has looked at what came so far: what it has not is no matter of this test
            connection = self.connect()
            connection.settimeout(0.2)
            mute.append(connection)
            try:
                for number in range(times):
                    sp_wire.send_frame(connection, struct.pack(">I", 0x80000001 + number) + question)
            except OSError:
                pass  # it stopped reading from us in turn
        self.assert_alive(10)
        self.assert_generates(f"beside-{times}")
        grown = self.coordinator.resident_bytes() - before
        for connection in mute:
            connection.close()
        self.assert_alive(10)
        return grown

    def test_many_that_ask_and_never_read(self):
        """Texts that wait have the bound of --queue-bytes, answers that nobody reads one of 64 MiB; the rest is frames
        that were just received, and what malloc keeps."""
        self.coordinator.kill()
        self.coordinator = self.system.start_coordinator("--queue-bytes", "16M")
        self.system.start_worker()
        text = sp_wire.msgpack.packb({"type": "tokenize", "prompt": "word " * 20000})
        self.assertLess(self.ask_and_never_read(text, 100), UNREAD_BYTES_MAX)
        ids = sp_wire.msgpack.packb({"type": "detokenize", "ids": struct.pack("<I", 1000) * 100000})
        self.assertLess(self.ask_and_never_read(ids, 50), UNREAD_BYTES_MAX)


if __name__ == "__main__":
    main()
