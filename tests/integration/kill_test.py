"""Kills workers at random under streams that go on submitting: every stream has the bits of an undisturbed run, none
is lost or repeated, first tokens come in the order of submission, and afterwards the coordinator is as small as
before. Also: death at every fault point, processes that are stopped, orderly ends under load, a worker that dies in
a loop.

usage: kill_test.py [--kills N] [--streams N] [--model NAME] [--pause SECONDS] [--seed N] [unittest arguments]
NAME is one of the small models, or the path of a GGUF without its ending. SECONDS: between an attachment and its kill,
about; some steps long, since whose every first step dies may be overtaken in the end (coordinator/suspicion.h)."""
import argparse
import os
import random
import re
import shutil
import signal
import struct
import sys
import threading
import time

from tandem_harness import (BIN, EXIT_INTERNAL, EXIT_TEMPORARY, PATIENCE, Process, TandemTest, main, model_path,
                            sp_wire, wait_for)

settings = argparse.Namespace(kills=50, streams=32, model="tiny", pause=0.08, seed=None)
WORDS = "the river and an old bridge carried a quiet town through many long winters of snow".split()
SHAPES = 40         # different requests
NOBODY = 65534
GROWTH_BYTES_MAX = 8 << 20
ORPHAN_MS = 4000
POINTS_HEADER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../worker/fault_points.h")


def body(number):
    """Short and long prompts, greedy and sampled ones, some with stop strings."""
    chance = random.Random(number)
    words = [chance.choice(WORDS) for _ in range(int(300 ** chance.random()))]
    fields = dict(prompt=" ".join(words), max_tokens=chance.randrange(1, 60), ignore_eos=chance.random() < 0.8)
    if chance.random() < 0.5:
        fields.update(temperature=chance.uniform(0.3, 1.3), top_k=chance.choice((0, 40)), top_p=0.9,
                      seed=1000 + number)
    if chance.random() < 0.2:
        fields.update(stop=["e", "\n"])
    return fields


def fault_points():
    with open(POINTS_HEADER, encoding="ascii") as file:
        return re.findall(r'X\([A-Z_]+, "([a-z_]+)"\)', file.read())


class Record:
    """One request as its client saw it. The coordinator took it between `sent` and `accepted`."""

    def __init__(self, number, sent, accepted, sequence):
        self.number, self.sent, self.accepted, self.sequence = number, sent, accepted, sequence
        self.finish = None

    def first_token_after(self):
        return self.sent + self.finish["timings"]["first_token_ns"] / 1e9

    def first_token_before(self):
        return self.accepted + self.finish["timings"]["first_token_ns"] / 1e9


class Traffic:
    """Clients that submit, follow to the end, compare, and submit again until they are told to stop."""

    def __init__(self, system, expected, streams, name):
        self.system, self.expected, self.name = system, expected, name
        self.turn = threading.Lock()  # one submits at a time, so that the order is known
        self.records, self.failures, self.stopping = [], [], False
        self.threads = [threading.Thread(target=self._run, daemon=True) for _ in range(streams)]
        for thread in self.threads:
            thread.start()

    def _submit(self, client):
        with self.turn:
            number, sent = len(self.records), time.monotonic()
            accepted = client.submit(f"{self.name}-{number}", **body(number % SHAPES))
            if accepted["type"] != "accepted":
                raise AssertionError(f"{number}: {accepted}")
            record = Record(number, sent, time.monotonic(), accepted["sequence"])
            self.records.append(record)
        return record

    def _follow(self, client, record):
        name = f"{self.name}-{record.number}"
        answer = client.follow(name, seconds=300)
        again = client.follow(name)  # from its beginning: what was told once stays
        if not answer.outcome() == again.outcome() == self.expected[record.number % SHAPES]:
            raise AssertionError(f"{name}: {answer.outcome()}, again {again.outcome()}, expected "
                                 f"{self.expected[record.number % SHAPES]}")
        record.finish = answer.finish

    def _run(self):
        client = self.system.client(120)
        try:
            while not self.stopping and not self.failures:
                self._follow(client, self._submit(client))
        except Exception as error:  # shown by stop()
            self.failures.append(error)
        client.close()

    def done(self):
        return sum(record.finish is not None for record in list(self.records))

    def stop(self):
        """Lets what runs come to its end; returns all records in order of submission."""
        self.stopping = True
        end = time.monotonic() + 300 * PATIENCE
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
        if self.failures:
            raise AssertionError(f"streams failed: {self.failures[:3]}")
        lost = [record.number for record in self.records if record.finish is None]
        assert not lost, f"no end of {lost}"
        return self.records


class Workers:
    """One that works and others that wait to follow it."""

    def __init__(self, system, waiting=1):
        self.system, self.waiting, self.alive = system, waiting, []
        self.top_up()

    def top_up(self):
        while len(self.alive) <= self.waiting:
            self.alive.append(self.system.start_worker(wait=False))

    def active(self):
        """The one that is attached, once there is one."""
        def attached():
            return next((worker for worker in self.alive if worker.events("worker_attached")), None)
        return wait_for(attached, 30, "a worker attaches")

    def standby(self):
        def waits():
            return next((worker for worker in self.alive if worker.events("worker_standby") and
                         not worker.events("worker_attached")), None)
        return wait_for(waits, 30, "a worker waits")

    def lose(self, worker):
        """It has ended, or will: another takes its place."""
        self.alive.remove(worker)
        self.top_up()

    def kill(self, worker):
        worker.kill()
        self.lose(worker)


class Kill(TandemTest):
    model = settings.model

    def setUp(self):
        self.model = settings.model
        super().setUp()
        self.seed = settings.seed if settings.seed is not None else random.randrange(1 << 32)
        self.chance = random.Random(self.seed)
        print(f"seed {self.seed}", file=sys.stderr)

    def start(self, *options, streams=None, waiting=1):
        """A coordinator that forgets soon what is finished, workers, and what each request gives undisturbed."""
        self.streams = streams or settings.streams
        self.coordinator = self.system.start_coordinator(
            "--slots", str(min(self.streams, 24)), "--kept-requests", "200",
            "--orphan-ms", str(ORPHAN_MS), *options)
        self.workers = Workers(self.system, waiting)
        self.workers.active()
        self.expected = self.undisturbed()

    def undisturbed(self):
        found = [None] * SHAPES
        todo = list(range(SHAPES))

        def take():
            client = self.system.client()
            while todo:
                number = todo.pop()
                found[number] = client.generate(f"calm-{number}", **body(number)).outcome()
            client.close()
        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertNotIn(None, found)
        return found

    def assert_order(self, records):
        """Submitted in order, and first tokens in that order. The moments are known within one round trip."""
        self.assertEqual(sorted(record.sequence for record in records), [record.sequence for record in records])
        latest = records[0]
        for record in records[1:]:
            self.assertLessEqual(latest.first_token_after(), record.first_token_before(),
                                 f"first token of {record.number} came before that of {latest.number}: "
                                 f"{record.finish}, {latest.finish}")
            if record.first_token_after() > latest.first_token_after():
                latest = record

    def assert_balanced(self):
        def balanced():
            stats = self.system.stats()
            held = [stats[name] for name in ("blocks_held", "blocks_retiring", "slots_held", "slots_retiring",
                                             "requests_running", "requests_queued", "requests_preempted",
                                             "plans_in_flight", "polls_parked", "queue_bytes")]
            return stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"] and not any(held)
        wait_for(balanced, 10, "an empty and balanced ledger")

    def assert_nobody_accused(self):
        stats = self.system.stats()
        self.assertEqual((stats["requests_failed"], stats["requests_cancelled"]), (0, 0))
        self.assertEqual(self.coordinator.events("request_poisoned"), [])

    def resources(self):
        """Descriptors, threads and bytes of the coordinator, when all epochs are buried."""
        wait_for(lambda: self.system.stats()["epochs_abandoned"] == 0, 20, "no abandoned epoch")
        time.sleep(2 * PATIENCE)  # coordinator/undertaker.h: half a second of quiet, then it closes
        return (self.coordinator.descriptors(), len(os.listdir(f"/proc/{self.coordinator.pid}/task")),
                self.coordinator.resident_bytes())

    def assert_vanished_client_is_noticed(self):
        """A parked poll ends with its connection, and a request that nobody asks for is cancelled."""
        client, other = self.system.client(), self.system.client()
        # So many and so long that none of them can end before it is missed, and yet each fits the pool.
        count, tokens = 12, 3000 if settings.model.startswith("tiny") else 1000
        for number in range(count):
            client.submit(f"vanishes-{number}", prompt="a", max_tokens=tokens, ignore_eos=True, temperature=0.5,
                          seed=number)
        poll = sp_wire.msgpack.packb({"type": "next", "id": "vanishes-0", "hold_tokens": tokens, "max_wait_ms": 20000})
        sp_wire.send_frame(client.requester.connection, struct.pack(">I", sp_wire.TOP_BIT) + poll)
        wait_for(lambda: other.ask(type="stats")["polls_parked"] == 1, 5, "a parked poll")
        client.close()  # as the kernel does for a killed client
        wait_for(lambda: other.ask(type="stats")["polls_parked"] == 0, 2, "the poll ends with its client")

        def outcome():
            state = other.ask(type="stats")
            return state["requests_orphaned"] == count and state["requests_running"] == 0
        wait_for(outcome, 2 * ORPHAN_MS / 1000, "the requests are cancelled")
        for number in range(count):
            answer = other.ask(type="next", id=f"vanishes-{number}", from_token=0)
            self.assertEqual(answer["finish"]["reason"], "cancelled")

    def test_random_kills(self):
        self.start(waiting=2)
        calm = Traffic(self.system, self.expected, self.streams, "calm-traffic")
        wait_for(lambda: calm.done() >= 8 * self.streams or calm.failures, 120, "traffic without kills")
        self.assert_order(calm.stop())
        self.assert_balanced()
        before = self.resources()
        traffic = Traffic(self.system, self.expected, self.streams, "storm")
        started = time.monotonic()
        for _ in range(settings.kills):
            active = self.workers.active()
            time.sleep((settings.pause / 3 + min(self.chance.expovariate(1 / settings.pause), settings.pause * 10)) *
                       PATIENCE)
            if self.chance.random() < 0.1:
                self.workers.kill(self.workers.standby())
            self.workers.kill(active)
            if traffic.failures:
                break
        self.workers.active()
        seconds = time.monotonic() - started
        records = traffic.stop()
        self.assert_order(records)
        self.assert_balanced()
        self.assert_nobody_accused()
        stats = self.system.stats()
        self.assertGreaterEqual(stats["workers_lost"], settings.kills)
        after = self.resources()
        print(f"{settings.kills} kills in {seconds:.0f} s under {self.streams} streams, {len(records)} requests, "
              f"{stats['recomputed_tokens']} positions computed again; descriptors {before[0]} -> {after[0]}, "
              f"threads {before[1]} -> {after[1]}, RSS grown by {(after[2] - before[2]) / 1048576:.1f} MiB",
              file=sys.stderr)
        self.assertLessEqual(after[0], before[0] + 2 * stats["epochs_abandoned"])
        self.assertLessEqual(after[1], before[1] + 1)
        if PATIENCE == 1:  # sanitizers keep freed memory for a while
            self.assertLessEqual(after[2], before[2] + GROWTH_BYTES_MAX)
        self.assert_vanished_client_is_noticed()

    def test_each_fault_point_under_streams(self):
        self.start(streams=min(settings.streams, 16))
        traffic = Traffic(self.system, self.expected, self.streams, "storm")
        for point in fault_points():
            for action in ("kill", "exit"):
                passage = self.chance.choice((1, 2, 7)) if point in ("plan_received", "plan_checked", "layer", "sampled",
                                                                     "before_result_sent", "result_shown",
                                                                     "after_result_sent") else 1
                worker = self.system.start_worker(fault=f"{point}:{passage}:{action}", wait=False)
                if point not in ("before_hello", "after_hello"):
                    worker.wait_event("worker_standby")
                    for other in list(self.workers.alive):  # so that it is its turn
                        other.kill()
                        self.workers.alive.remove(other)
                if point == "before_drained":
                    worker.wait_event("worker_attached")
                    worker.send(signal.SIGTERM)
                self.assertEqual(worker.exit_code(30), -signal.SIGKILL if action == "kill" else EXIT_INTERNAL,
                                 f"{point} {action}")
                self.workers.top_up()
                self.workers.active()
        self.assert_order(traffic.stop())
        self.assert_balanced()
        self.assert_nobody_accused()

    def start_as_nobody(self, *options):
        """A coordinator whose user may not kill the worker."""
        os.chmod(self.system.folder, 0o755)
        os.mkdir(self.system.run_dir, 0o711)
        os.chown(self.system.run_dir, NOBODY, 0)
        for source in (os.path.join(BIN, "tandem-coordinator"), model_path(settings.model)):
            shutil.copy(source, self.system.folder)
            os.chmod(os.path.join(self.system.folder, os.path.basename(source)), 0o755)
        model = os.path.join(self.system.folder, os.path.basename(model_path(settings.model)))
        process = Process("coordinator",
                          ["setpriv", f"--reuid={NOBODY}", "--regid=0", "--clear-groups",
                           os.path.join(self.system.folder, "tandem-coordinator"), "--run-dir", self.system.run_dir,
                           "--model", model, "--kv-pool-bytes", "64M", "--worker-user", "0", *options],
                          os.path.join(self.system.folder, "coordinator.log"))
        self.system.processes.append(process)
        process.wait_event("coordinator_ready")
        return process

    def test_stopped_for_eight_seconds_and_continued(self):
        """It is fenced and replaced; where the coordinator may not kill it, it wakes up and leaves by itself."""
        separate = os.getuid() == 0  # only root can start a process of another user
        options = ("--slots", "8", "--kept-requests", "200")
        self.coordinator = self.start_as_nobody(*options) if separate else self.system.start_coordinator(*options)
        self.workers = Workers(self.system, 1)
        old = self.workers.active()
        self.expected = self.undisturbed()
        traffic = Traffic(self.system, self.expected, 8, "storm")
        wait_for(lambda: traffic.done() >= 20, 60, "traffic")
        following = self.workers.standby()
        old.send(signal.SIGSTOP)
        stopped = time.monotonic()
        following.wait_event("worker_attached", seconds=6)
        replaced = time.monotonic() - stopped
        count = traffic.done()
        time.sleep(max(0.0, 8 - (time.monotonic() - stopped)))
        self.assertGreater(traffic.done(), count)  # the new one works while the old one stands
        if separate:
            self.assertEqual(len(self.coordinator.events("worker_unreaped")), 1)
            self.assertEqual(self.system.stats()["epochs_abandoned"], 1)
        stale = self.system.stats()["messages_stale"]
        old.send(signal.SIGCONT)
        self.assertEqual(old.exit_code(10), EXIT_TEMPORARY if separate else -signal.SIGKILL)
        wait_for(lambda: self.system.stats()["epochs_abandoned"] == 0, 10, "the end of its epoch")
        self.assert_order(traffic.stop())
        self.assert_balanced()
        stats = self.system.stats()
        self.assertEqual((stats["epoch"], stats["workers_lost"], stats["requests_failed"], stats["messages_stale"]),
                         (2, 1, 0, stale))
        self.assertTrue(following.running())
        print(f"replaced {replaced:.1f} s after SIGSTOP", file=sys.stderr)

    def test_stopped_standby_is_passed_over(self):
        self.start(streams=8, waiting=2)
        traffic = Traffic(self.system, self.expected, 8, "storm")
        wait_for(lambda: self.system.stats()["workers_standby"] == 2, 20, "two that wait")
        first = self.workers.active()
        asleep = next(worker for worker in self.workers.alive if worker is not first and
                      worker.events("worker_standby")[-1]["position"] == "1")  # the next to be promoted
        third = next(worker for worker in self.workers.alive if worker not in (first, asleep))
        asleep.send(signal.SIGSTOP)
        first.kill()
        third.wait_event("worker_attached", seconds=10)
        self.assert_order(traffic.stop())
        self.assertEqual(asleep.exit_code(10), -signal.SIGKILL)
        self.assert_balanced()
        self.assert_nobody_accused()

    def test_workers_that_are_asked_to_leave_under_streams(self):
        self.start()
        traffic = Traffic(self.system, self.expected, self.streams, "storm")
        slowest = 0.0
        for _ in range(5):
            active = self.workers.active()
            self.workers.standby()
            time.sleep(self.chance.uniform(0.05, 0.3) * PATIENCE)
            asked = time.monotonic()
            active.send(signal.SIGTERM)
            self.assertEqual(active.exit_code(10), 0)
            slowest = max(slowest, time.monotonic() - asked)
            self.workers.lose(active)
        self.assert_order(traffic.stop())
        self.assert_balanced()
        self.assert_nobody_accused()
        print(f"handed over 5 times, the slowest took {slowest:.2f} s", file=sys.stderr)

    def test_coordinator_that_is_asked_to_leave_under_streams(self):
        timeout_ms = int(1500 * PATIENCE)
        self.start("--drain-timeout-ms", str(timeout_ms))
        client = self.system.client()
        long = [f"long-{number}" for number in range(self.streams)]
        for name in long:  # some run, some wait; none can end in time
            client.submit(name, prompt="a", max_tokens=3500, ignore_eos=True)
        ends = [self.system.in_background(self.system.client().follow, name) for name in long]
        wait_for(lambda: self.system.stats()["requests_running"] > 1, 10, "running requests")
        asked = time.monotonic()
        self.coordinator.send(signal.SIGTERM)
        self.assertEqual(self.coordinator.exit_code(15), 0)
        seconds = time.monotonic() - asked
        for end in ends:
            finish = end.result(5).finish
            self.assertIn((finish["reason"], finish.get("error", {}).get("code")), (("error", "draining"),
                                                                                    ("length", None)))
        self.assertLess(seconds, timeout_ms / 1000 + 3 * PATIENCE)
        self.assertEqual(sorted(os.listdir(self.system.run_dir)), ["lock"])
        print(f"drained in {seconds:.2f} s, {timeout_ms} ms of them for requests that run", file=sys.stderr)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=settings.kills)
    parser.add_argument("--streams", type=int, default=settings.streams)
    parser.add_argument("--model", default=settings.model)
    parser.add_argument("--pause", type=float, default=settings.pause)
    parser.add_argument("--seed", type=int)
    _, sys.argv[1:] = parser.parse_known_args(namespace=settings)


if __name__ == "__main__":
    parse()
    main()
