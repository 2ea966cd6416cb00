"""A client, a coordinator, a worker: one answer through every room, and an orderly end."""
import os
import signal

from tandem_harness import TandemTest, main


class Generate(TandemTest):
    def test_worker_second(self):
        coordinator = self.system.start_coordinator()
        worker = self.system.start_worker()
        client = self.system.client()
        first = client.generate("a", prompt="Once upon a time", max_tokens=20, ignore_eos=True)
        self.assertEqual(len(first.tokens), 20)
        self.assertEqual(first.finish["reason"], "length")
        self.assertEqual(first.finish["usage"]["completion_tokens"], 20)
        again = client.generate("b", prompt="Once upon a time", max_tokens=20, ignore_eos=True)
        self.assertEqual(first.outcome(), again.outcome())
        self.assertIsNotNone(first.finish["logits_hash"])
        worker.send(signal.SIGTERM)
        self.assertEqual(worker.exit_code(5), 0)
        coordinator.send(signal.SIGTERM)
        self.assertEqual(coordinator.exit_code(5), 0)
        self.assertEqual(sorted(os.listdir(self.system.run_dir)), ["lock"])

    def test_worker_first(self):
        worker = self.system.start_worker(wait=False)
        worker.wait_event("waiting_for_coordinator")
        self.system.start_coordinator()
        worker.wait_event("worker_attached")
        self.assertEqual(len(worker.events("waiting_for_coordinator")), 1)
        answer = self.system.client().generate("a", prompt="Hello", max_tokens=5, ignore_eos=True)
        self.assertEqual(len(answer.tokens), 5)

    def test_steps_are_logged_for_debugging(self):
        self.system.start_coordinator()
        worker = self.system.start_worker("--log-level", "debug")
        self.system.client().generate("a", prompt="Hello", max_tokens=5, ignore_eos=True)
        worker.wait_event("step_ended", count=5)
        steps = worker.events("step_ended")
        self.assertEqual([int(step["step"]) for step in steps], list(range(1, len(steps) + 1)))
        self.assertGreaterEqual(sum(int(step["samples"]) for step in steps), 5)
        seen = [int(step["seen_ns"]) for step in steps]
        self.assertEqual(seen, sorted(seen))
        self.assertTrue(all(step["begun_ns"] == step["ended_ns"] == "0" for step in steps))  # a CPU has no other clock

    def test_submit_before_any_worker(self):
        self.system.start_coordinator()
        client = self.system.client()
        accepted = client.submit("early", prompt="Hello", max_tokens=5, ignore_eos=True)
        self.assertEqual(accepted["type"], "accepted")
        health = client.ask(type="health")
        self.assertTrue(health["live"])
        self.assertFalse(health["ready"])
        self.system.start_worker()
        self.assertEqual(len(client.follow("early").tokens), 5)

    def test_seed_and_chat(self):
        self.system.start_coordinator()
        self.system.start_worker()
        client = self.system.client()
        fields = dict(messages=[{"role": "user", "content": "Name a colour."}], max_tokens=24,
                      temperature=0.9, top_k=50, top_p=0.95, ignore_eos=True)
        one = client.generate("one", seed=7, **fields)
        two = client.generate("two", seed=7, **fields)
        three = client.generate("three", seed=8, **fields)
        self.assertEqual(one.outcome(), two.outcome())
        self.assertNotEqual(one.tokens, three.tokens)


if __name__ == "__main__":
    main()
