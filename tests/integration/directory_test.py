"""Models as Hugging Face directories: ids in, ids out, with the tokens and logits of the GGUF of the same weights;
text is refused by name; damaged directories end the start of both programs with one sentence and code 66."""
import json
import os
import shutil
import subprocess

from tandem_harness import BIN, TandemTest, main, model_path

IDS = [1, 17, 300, 4711, 49151, 0, 2, 7]
PROGRAM = os.path.abspath(os.path.join(BIN, "tandem"))


class Directory(TandemTest):
    model = "tiny-directory"

    def answers(self, model, fields):
        self.system.model = model
        coordinator, worker = self.system.start_coordinator(), self.system.start_worker()
        client = self.system.client()
        answer = client.generate("a", **fields)
        client.close()
        worker.kill()
        coordinator.kill()
        return answer

    def test_answers_are_those_of_the_file(self):
        fields = dict(ids=IDS, max_tokens=40, temperature=0.8, top_k=40, seed=7, ignore_eos=True)
        for directory, file in (("tiny-directory", "tiny-bf16"), ("tiny-shards", "tiny-untied")):
            ours, theirs = self.answers(directory, fields), self.answers(file, fields)
            self.assertEqual(len(ours.tokens), 40)
            self.assertEqual(ours.tokens, theirs.tokens)
            self.assertEqual(ours.finish["logits_hash"], theirs.finish["logits_hash"])
            self.assertEqual(ours.text, b"")

    def test_end_tokens_of_both_files_end_an_answer(self):
        fields = dict(ids=IDS, max_tokens=12, temperature=1.0, seed=5)
        whole = self.answers("tiny-directory", {**fields, "ignore_eos": True}).tokens
        self.assertEqual(len(set(whole)), 12)
        for name, place in (("config.json", 4), ("generation_config.json", 7)):
            folder = os.path.join(self.system.folder, name)
            shutil.copytree(model_path("tiny-directory"), folder)
            path = os.path.join(folder, name)
            with open(path, encoding="ascii") as file:
                config = json.load(file)
            config["eos_token_id"] = [whole[place]]
            with open(path, "w", encoding="ascii") as file:
                json.dump(config, file)
            answer = self.answers(folder, fields)
            self.assertEqual((answer.tokens, answer.finish["reason"]), (whole[:place + 1], "stop"))

    def test_text_is_refused_by_name(self):
        coordinator = self.system.start_coordinator()
        event = coordinator.wait_event("tokenizer_absent")
        self.assertEqual(event["tokenizer_json"], "ignored")
        client = self.system.client()
        for field, request in [
                ("prompt", dict(type="submit", id="a", prompt="text")),
                ("messages", dict(type="submit", id="b", messages=[{"role": "user", "content": "x"}])),
                ("stop", dict(type="submit", id="c", ids=[1], stop=["x"])),
                ("prompt", dict(type="tokenize", prompt="text")),
                ("ids", dict(type="detokenize", ids=[1, 2]))]:
            answer = client.ask(**request)
            self.assertEqual((answer["type"], answer["code"], answer["field"]), ("error", "unsupported", field))
            self.assertIn("without a tokenizer", answer["message"])
        answer = client.submit("d", ids=[49152])
        self.assertEqual((answer["code"], answer["field"]), ("invalid_request", "ids"))
        model = client.ask(type="models")["models"][0]
        self.assertEqual((model["ids_only"], model["vocabulary"], model["name"]), (True, 49152, "tiny-directory"))

    def run_tandem(self, *words, stdin=b""):
        return subprocess.run([PROGRAM, words[0], "--run-dir", self.system.run_dir, *words[1:]], input=stdin,
                              capture_output=True, timeout=60, check=False)

    def test_command_line(self):
        self.system.start_coordinator()
        self.system.start_worker()
        expected = self.system.client().generate("a", ids=IDS, max_tokens=12, ignore_eos=True).tokens
        text = ",".join(map(str, IDS))
        path = os.path.join(self.system.folder, "prompt.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump(IDS, file)
        options = ("--max-tokens", "12", "--ignore-eos")
        for source, stdin in ((text, b""), (path, b""), ("-", text.replace(",", " ").encode())):
            done = self.run_tandem("generate", "--ids", source, *options, stdin=stdin)
            self.assertEqual((done.returncode, done.stdout), (0, (" ".join(map(str, expected)) + "\n").encode()),
                             done.stderr)
        done = self.run_tandem("generate", "--ids", text, "--json", *options)
        value = json.loads(done.stdout)
        self.assertEqual((value["ids"], value["text"]), (expected, ""))
        done = self.run_tandem("generate", "Hello")
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"send `ids` (generate --ids IDS)", done.stderr)
        self.assertIn(b"no: token ids only", self.run_tandem("models").stdout)

    def test_a_directory_may_be_named_like_a_file(self):
        folder = os.path.join(self.system.folder, "model.safetensors")
        shutil.copytree(model_path("tiny-directory"), folder)
        for program in ("tandem-coordinator", "tandem-worker"):
            done = subprocess.run([os.path.join(BIN, program), "--check", "--kv-pool-bytes=64M", "--model", folder],
                                  capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_damaged_directory_ends_both_with_one_sentence(self):
        folder = os.path.join(self.system.folder, "model")
        shutil.copytree(model_path("tiny-directory"), folder)
        tensors = os.path.join(folder, "model.safetensors")
        os.truncate(tensors, os.path.getsize(tensors) - 1)
        for program in ("tandem-coordinator", "tandem-worker"):
            done = subprocess.run([os.path.join(BIN, program), "--run-dir", self.system.run_dir, "--model", folder],
                                  capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 66, done.stderr)
            last = done.stderr.decode().strip().split("\n")[-1]
            self.assertRegex(last, rf'^{program}: --model "{folder}": model.safetensors: tensor .* ends at byte \d+ of '
                                   r"the data, but the file has \d+: it is damaged")


if __name__ == "__main__":
    main()
