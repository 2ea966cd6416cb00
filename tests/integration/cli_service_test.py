"""The program `tandem` and the Python example against real processes: the same answers as a client of our own,
Ctrl-C that reaches the core, streams that outlive their worker, a coordinator that was restarted."""
import json
import os
import signal
import subprocess
import sys

from tandem_harness import BIN, PATIENCE, TandemTest, main, wait_for

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
PROGRAM = os.path.abspath(os.path.join(BIN, "tandem"))


class Service(TandemTest):
    def start(self, *words):
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("TANDEM_")}
        return subprocess.Popen([PROGRAM, words[0], "--run-dir", self.system.run_dir, *words[1:]],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=environment)

    def finish(self, process):
        output, errors = process.communicate(timeout=60 * PATIENCE)
        return process.returncode, output, errors

    def run_command(self, *words):
        return self.finish(self.start(*words))

    def answer(self, *words):
        code, output, errors = self.run_command(*words)
        self.assertEqual(code, 0, errors)
        return json.loads(output)

    def pair(self, *options):
        return self.system.start_coordinator(*options), self.system.start_worker()

    def test_answers_are_those_of_any_client(self):
        self.pair()
        sampling = ["--max-tokens", "24", "--temperature", "0.9", "--top-k", "50", "--top-p",
                    "0.95", "--min-p", "0.01", "--seed", "7", "--ignore-eos"]
        ours = self.answer("generate", "--json", *sampling, "Once upon a time")
        other = self.system.client().generate(
            "other", prompt="Once upon a time", max_tokens=24, temperature=0.9, top_k=50,
            top_p=0.95, min_p=0.01, seed=7, ignore_eos=True)
        self.assertEqual(ours["ids"], other.tokens)
        self.assertEqual(ours["text"], other.text.decode("utf-8", "replace"))
        self.assertEqual(int(ours["logits_hash"], 16), other.finish["logits_hash"])
        self.assertEqual((ours["finish_reason"], ours["seed"]), ("length", "7"))
        self.assertEqual(ours["usage"]["completion_tokens"], 24)
        again = self.answer("generate", "--json", *sampling, "Once upon a time")
        self.assertNotEqual(again["id"], ours["id"])
        self.assertEqual((again["ids"], again["logits_hash"]), (ours["ids"], ours["logits_hash"]))

    def test_plain_output_is_the_text(self):
        self.pair()
        words = ["--max-tokens", "12", "--ignore-eos", "--seed", "1", "Hello"]
        expected = self.system.client().generate("a", prompt="Hello", max_tokens=12,
                                                 ignore_eos=True).text
        code, output, errors = self.run_command("generate", *words)
        self.assertEqual(code, 0, errors)
        self.assertEqual(output.removesuffix(b"\n"), expected.removesuffix(b"\n"))
        self.assertRegex(errors, rb"^\[12 tokens, .* ended by the token limit\]\n$")
        chat = self.answer("chat", "--json", "--max-tokens", "8", "--ignore-eos", "Hello")
        messages = [{"role": "user", "content": "Hello"}]
        self.assertEqual(chat["ids"], self.system.client().generate(
            "b", messages=messages, max_tokens=8, ignore_eos=True).tokens)

    def test_tokens_there_and_back(self):
        self.system.start_coordinator()
        text = "Grüße, 世界! 🌍\n\t  x"
        ids = self.answer("tokenize", "--json", text)["ids"]
        self.assertGreater(len(ids), 5)
        code, output, _ = self.run_command("detokenize", *map(str, ids))
        self.assertEqual((code, output.decode()), (0, text))

    def test_questions(self):
        self.system.start_coordinator()
        self.assertEqual(self.run_command("health")[:2], (1, b"not ready: no_worker (start tandem-worker)\n"))
        self.system.start_worker()
        self.assertEqual(self.run_command("health")[:2], (0, b"ready\n"))
        self.answer("generate", "--json", "--id", "mine", "--max-tokens", "3", "--ignore-eos", "x")
        status = self.answer("status", "--json", "mine")
        self.assertEqual((status["state"], status["finish_reason"], status["completion_tokens"]),
                         ("finished", "length", 3))
        stats = self.answer("stats", "--json")
        self.assertEqual((stats["requests_submitted"], stats["requests_length"]), (1, 1))
        model = self.answer("models", "--json")["models"][0]
        self.assertGreater(model["vocabulary"], 49000)
        code, output, errors = self.run_command("status", "typo")
        self.assertEqual((code, output), (1, b""))
        self.assertIn(b"no request with this id", errors)

    def test_refusals_of_the_core(self):
        self.pair("--context", "64")
        code, output, errors = self.run_command("generate", "word " * 100)
        self.assertEqual((code, output), (1, b""))
        self.assertIn(b"63", errors)
        first = ["generate", "--json", "--id", "same", "--max-tokens", "2", "--ignore-eos"]
        self.answer(*first, "one")
        code, output, _ = self.run_command(*first, "two")
        self.assertEqual((code, json.loads(output)["error"]["code"]), (1, "idempotency_conflict"))
        self.assertEqual(self.answer(*first, "one")["usage"]["completion_tokens"], 2)
        self.assertEqual(self.system.stats()["requests_repeated"], 1)

    def test_interrupt_reaches_the_core(self):
        self.system.start_coordinator()  # without a worker the request waits for ever
        process = self.start("generate", "--json", "--id", "mine", "x")
        client = self.system.client()
        wait_for(lambda: client.ask(type="status", id="mine")["type"] == "status", 20,
                 "the request is known")
        process.send_signal(signal.SIGINT)
        code, output, errors = self.finish(process)
        self.assertEqual((code, errors), (130, b""))
        self.assertEqual(json.loads(output)["finish_reason"], "cancelled")
        self.assertEqual(self.system.stats()["requests_cancelled"], 1)

    def test_a_stream_outlives_its_worker(self):
        _, worker = self.pair()
        words = ["generate", "--json", "--max-tokens", "900", "--ignore-eos"]
        expected = self.answer(*words, "Once")
        process = self.start(*words, "--id", "mine", "Once")
        client = self.system.client()
        wait_for(lambda: client.ask(type="status", id="mine").get("completion_tokens", 0) > 20, 20,
                 "the stream runs")
        worker.kill()
        self.system.start_worker()
        code, output, errors = self.finish(process)
        self.assertEqual(code, 0, errors)
        answer = json.loads(output)
        self.assertEqual((answer["ids"], answer["logits_hash"]),
                         (expected["ids"], expected["logits_hash"]))
        self.assertEqual(answer["usage"]["workers_lost"], 1)

    def test_a_restarted_coordinator_is_told(self):
        coordinator = self.system.start_coordinator()
        process = self.start("generate", "--id", "mine", "x")
        # who had no answer yet submits again, and waits for a worker of the new one
        wait_for(lambda: self.system.stats()["polls_parked"] == 1, 20, "the command has its request")
        coordinator.kill()
        self.system.start_coordinator()
        code, output, errors = self.finish(process)
        self.assertEqual((code, output), (1, b""))
        self.assertIn(b"the coordinator was restarted and no longer knows this request", errors)

    def test_a_drain_is_told(self):
        coordinator, _ = self.pair("--drain-timeout-ms", str(int(30_000 * PATIENCE)))
        process = self.start("generate", "--json", "--id", "mine", "--max-tokens", "1500",
                             "--ignore-eos", "x")
        client = self.system.client()
        wait_for(lambda: client.ask(type="status", id="mine").get("completion_tokens", 0) > 5, 20,
                 "the stream runs")
        coordinator.send(signal.SIGTERM)
        wait_for(lambda: client.ask(type="health")["draining"], 10, "it drains")
        code, output, _ = self.run_command("generate", "--json", "y")
        self.assertEqual(code, 1)
        self.assertEqual(json.loads(output)["error"]["code"], "draining")
        code, output, errors = self.finish(process)
        self.assertEqual(code, 0, errors)
        self.assertEqual(len(json.loads(output)["ids"]), 1500)
        self.assertEqual(coordinator.exit_code(), 0)

    def test_python_example(self):
        self.pair()
        example = os.path.join(ROOT, "client", "python", "tandem_example.py")
        environment = {**os.environ, "TANDEM_RUN_DIR": self.system.run_dir,
                       "PYTHONPATH": os.path.join(ROOT, "tests", "support")}
        done = subprocess.run([sys.executable, example, "Hello"], env=environment,
                              capture_output=True, timeout=60 * PATIENCE, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        expected = self.system.client().generate(
            "b", messages=[{"role": "user", "content": "Hello"}], max_tokens=500)
        head = b"\n[" + expected.finish["reason"].encode() + \
            b", %d tokens, first after " % len(expected.tokens)
        self.assertTrue(done.stdout.startswith(expected.text + head), done.stdout[-300:])


if __name__ == "__main__":
    main()
