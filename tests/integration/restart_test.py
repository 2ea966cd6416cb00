"""Workers and coordinators that go away at every moment: streams go on with the bits of an undisturbed run."""
import os
import signal
import time

from tandem_harness import (EXIT_INTERNAL, EXIT_TEMPORARY, PATIENCE, Streams, TandemTest, main, wait_for)

WORDS = "the river and an old bridge carried a quiet town through many long winters of snow".split()


def request(number, max_tokens=60):
    """Different lengths, greedy and sampled ones."""
    fields = dict(prompt=" ".join(WORDS[(number + i) % len(WORDS)] for i in range(3 + number * 2)),
                  max_tokens=max_tokens + number % 7, ignore_eos=True)
    if number % 2 == 1:
        fields.update(temperature=0.8, top_k=40, top_p=0.9, seed=1000 + number)
    return fields


class Restart(TandemTest):
    def undisturbed(self, count, max_tokens=60):
        streams = Streams(self.system)
        for number in range(count):
            streams.start(f"calm-{number}", **request(number, max_tokens))
        answers = streams.join()
        return [answers[f"calm-{number}"].outcome() for number in range(count)]

    def start_streams(self, count, max_tokens=60):
        streams = Streams(self.system)
        for number in range(count):
            streams.start(f"storm-{number}", **request(number, max_tokens))
        return streams

    def assert_equal_outcomes(self, streams, expected):
        answers = streams.join()
        for number, outcome in enumerate(expected):
            self.assertEqual(answers[f"storm-{number}"].outcome(), outcome, f"request {number}")

    def assert_ledger_balanced(self):
        def balanced():
            stats = self.system.stats()
            held = (stats["blocks_held"], stats["blocks_retiring"], stats["slots_held"],
                    stats["slots_retiring"], stats["requests_running"], stats["requests_queued"])
            total = stats["blocks_free"] + stats["blocks_cached"] == stats["blocks_total"]
            return total and not any(held)
        wait_for(balanced, 5, "an empty and balanced ledger")

    def wait_tokens(self, streams, identifier, count):
        wait_for(lambda: len(streams.answers[identifier].tokens) >= count, 30,
                 f"{count} tokens of {identifier}")

    def test_kill_with_streams_running_and_requests_queued(self):
        self.system.start_coordinator("--slots", "8")
        worker = self.system.start_worker()
        expected = self.undisturbed(28, 120)
        sent = []
        streams = Streams(self.system)
        for number in range(28):
            sent.append(time.monotonic())
            streams.start(f"storm-{number}", **request(number, 120))
        self.wait_tokens(streams, "storm-0", 10)
        wait_for(lambda: self.system.stats()["requests_running"] == 8, 5, "eight running requests")
        worker.kill()
        self.assertEqual(sum(answer.finish is not None for answer in streams.answers.values()), 0)
        self.system.start_worker()
        self.assert_equal_outcomes(streams, expected)
        # First tokens came in order of submission. A client sees them a moment later than they are, so the moment is
        # taken from the answer: submission plus first_token_ns, known to within the round trip of one submit.
        firsts = [sent[number] + streams.answers[f"storm-{number}"].finish["timings"]
                  ["first_token_ns"] / 1e9 for number in range(28)]
        for earlier, later in zip(firsts, firsts[1:]):
            self.assertLess(earlier, later + 0.02, firsts)
        self.assert_ledger_balanced()
        stats = self.system.stats()
        self.assertEqual((stats["epoch"], stats["workers_lost"], stats["rows_dropped"] >= 0),
                         (2, 1, True))

    def test_killed_at_each_message_of_a_step(self):
        self.system.start_coordinator("--slots", "4")
        worker = self.system.start_worker()
        expected = self.undisturbed(6, 20)
        worker.kill()
        for point, counts in (("before_hello", (1,)), ("after_hello", (1,)), ("after_attach", (1,)),
                              ("after_ready", (1,)), ("plan_received", (1, 2, 9)),
                              ("plan_checked", (1, 2, 9)), ("layer", (1, 2, 17)),
                              ("sampled", (1, 2, 9)), ("before_result_sent", (1, 2, 9)), ("result_shown", (1, 2, 9)),
                              ("after_result_sent", (1, 2, 9))):
            for count in counts:
                with self.subTest(point=point, count=count):
                    self.die_at(f"{point}:{count}:kill", expected)
        self.assert_ledger_balanced()

    def die_at(self, fault, expected):
        worker = self.system.start_worker(fault=fault, wait=False)
        prefix = fault.replace(":", "-")
        streams = Streams(self.system)
        for number in range(len(expected)):
            streams.start(f"{prefix}-{number}", **request(number, 20))
        self.assertEqual(worker.exit_code(), -signal.SIGKILL)
        survivor = self.system.start_worker()
        answers = streams.join()
        for number, outcome in enumerate(expected):
            self.assertEqual(answers[f"{prefix}-{number}"].outcome(), outcome, f"{fault} {number}")
        survivor.kill()

    def test_one_that_exits_at_once_and_one_that_hangs(self):
        self.system.start_coordinator("--slots", "4")
        worker = self.system.start_worker()
        expected = self.undisturbed(4, 20)
        worker.kill()
        for fault in ("sampled:3:exit", "layer:5:hang"):
            worker = self.system.start_worker(fault=fault)
            standby = self.system.start_worker(wait=False)
            standby.wait_event("worker_standby")
            streams = Streams(self.system)
            for number in range(4):
                streams.start(f"{fault}-{number}", **request(number, 20))
            # The hung one is ended by its own watchdog or by the coordinator, whoever is first.
            self.assertIn(worker.exit_code(30), (EXIT_INTERNAL, -signal.SIGKILL))
            answers = streams.join()
            for number, outcome in enumerate(expected):
                self.assertEqual(answers[f"{fault}-{number}"].outcome(), outcome)
            standby.kill()

    def test_stopped_worker_is_replaced(self):
        self.system.start_coordinator("--slots", "4")
        worker = self.system.start_worker()
        expected = self.undisturbed(4, 120)
        standby = self.system.start_worker(wait=False)
        standby.wait_event("worker_standby")
        streams = self.start_streams(4, 120)
        self.wait_tokens(streams, "storm-0", 10)
        worker.send(signal.SIGSTOP)
        standby.wait_event("worker_attached", seconds=20)
        self.assert_equal_outcomes(streams, expected)
        worker.send(signal.SIGCONT)
        self.assertIn(worker.exit_code(), (-signal.SIGKILL, EXIT_TEMPORARY))

    def test_worker_that_is_asked_to_leave(self):
        self.system.start_coordinator("--slots", "4")
        worker = self.system.start_worker()
        expected = self.undisturbed(4, 120)
        standby = self.system.start_worker(wait=False)
        standby.wait_event("worker_standby")
        streams = self.start_streams(4, 120)
        self.wait_tokens(streams, "storm-0", 10)
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.exit_code(10), 0)
        self.assert_equal_outcomes(streams, expected)
        self.assertEqual(self.system.stats()["epoch"], 2)

    def test_restarted_coordinator_is_attached_again(self):
        coordinator = self.system.start_coordinator("--slots", "4")
        worker = self.system.start_worker()
        expected = self.undisturbed(4, 20)
        for number, stop in enumerate((signal.SIGKILL, signal.SIGTERM)):
            coordinator.send(stop)
            coordinator.exit_code()
            worker.wait_event("coordinator_lost", count=number + 1)
            coordinator = self.system.start_coordinator("--slots", "4")
            worker.wait_event("worker_attached", count=number + 2)
            streams = self.start_streams(4, 20)
            self.assert_equal_outcomes(streams, expected)
        self.assertEqual(len(worker.events("model_loaded")), 1)
        self.assertTrue(worker.running())

    def test_drain(self):
        coordinator = self.system.start_coordinator("--slots", "4",
                                                    "--drain-timeout-ms", str(int(30_000 * PATIENCE)))
        worker = self.system.start_worker()
        expected = self.undisturbed(4, 1000)
        streams = self.start_streams(4, 1000)
        for identifier in streams.answers:  # those that were still queued would be refused
            self.wait_tokens(streams, identifier, 1)
        client = self.system.client()
        coordinator.send(signal.SIGTERM)
        coordinator.wait_event("stop_requested")
        refused = client.submit("late", prompt="x", max_tokens=1)
        self.assertEqual((refused["type"], refused["code"]), ("error", "draining"))
        self.assertGreater(refused["retry_after_ms"], 0)
        self.assert_equal_outcomes(streams, expected)
        self.assertEqual(coordinator.exit_code(10), 0)
        self.assertEqual(sorted(os.listdir(self.system.run_dir)), ["lock"])
        self.assertTrue(worker.running())

    def test_second_signal_means_now(self):
        coordinator = self.system.start_coordinator("--slots", "4")
        self.system.start_worker()
        client = self.system.client()
        client.submit("long", prompt="x", max_tokens=4000, ignore_eos=True)
        parked = self.system.in_background(self.system.client().ask, type="next", id="long",
                                           hold_tokens=4000, max_wait_ms=20000)
        wait_for(lambda: client.ask(type="stats")["polls_parked"] == 1, 5, "a parked poll")
        coordinator.send(signal.SIGTERM)
        coordinator.wait_event("drain_started")
        coordinator.send(signal.SIGTERM)
        answer = parked.result(5)
        self.assertEqual((answer["state"], answer["finish"]["error"]["code"]),
                         ("finished", "draining"))
        self.assertEqual(coordinator.exit_code(5), 0)


if __name__ == "__main__":
    main()
