"""The program `tandem` against a coordinator that follows a script: what it prints, what it asks, how it
ends. Usage: cli_test.py TANDEM [unittest options]"""
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unittest

from cli_fake import CUT, SILENCE, Fake, Runner, finish

RUNNER = Runner("")
COURSE = [([1, 2], "The capital "), ([3], "is "), ([4, 5], "Paris.")]
TEXT = "The capital is Paris."


def run(*words, **more):
    return RUNNER.run(*words, **more)


class Terminal:
    """The program with a terminal on some of its three streams."""

    def __init__(self, *words, directory, on=(0, 1, 2), env=None):
        self.master, slave = pty.openpty()
        streams = [slave if number in on else subprocess.PIPE for number in range(3)]
        self.process = subprocess.Popen(
            [RUNNER.program, words[0], "--run-dir", directory, *words[1:]], stdin=streams[0],
            stdout=streams[1], stderr=streams[2], env=RUNNER.environment(**(env or {})),
            start_new_session=True)
        os.close(slave)
        self.seen = b""

    def read(self, seconds):
        ready, _, _ = select.select([self.master], [], [], seconds)
        try:
            piece = os.read(self.master, 65536) if ready else b""
        except OSError:
            return False  # the program closed its side
        self.seen += piece
        return bool(piece)

    def wait_for(self, text, seconds=10):
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, (text, self.seen)
            self.read(0.1)

    def type(self, text):
        os.write(self.master, text)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def end(self):
        """Exit code, after all output was read."""
        end = time.monotonic() + 20
        while self.read(0.1) or self.process.poll() is None:
            assert time.monotonic() < end, self.seen
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        os.close(self.master)


class Generate(unittest.TestCase):
    def test_text_goes_to_stdout_and_figures_to_stderr(self):
        with Fake(COURSE) as fake:
            done = run("generate", "Once", "upon", directory=fake.directory)
        self.assertEqual(done.stdout.decode(), TEXT + "\n")
        self.assertRegex(done.stderr.decode(),
                         r"^\[2 tokens, [0-9.]+ tokens/s, first token after \d+ ms\]\n$")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(fake.of_type("submit")[0]["prompt"], "Once upon")

    def test_quiet_says_nothing_else(self):
        with Fake(COURSE) as fake:
            done = run("generate", "--quiet", "x", directory=fake.directory)
        self.assertEqual((done.stdout.decode(), done.stderr), (TEXT + "\n", b""))

    def test_the_end_by_length_is_told(self):
        course = [([1], "a"), {"state": "finished", "finish": finish("length")}]
        with Fake(course) as fake:
            done = run("generate", "x", directory=fake.directory)
        self.assertIn(b"ended by the token limit", done.stderr)
        self.assertEqual(done.returncode, 0)

    def test_json_is_one_object(self):
        course = [*COURSE, {"state": "finished",
                            "finish": finish("stop", logits_hash=2 ** 64 - 2)}]
        with Fake(course) as fake:
            done = run("generate", "--json", "--id", "mine", "x", directory=fake.directory)
        self.assertEqual(done.stderr, b"")
        answer = json.loads(done.stdout)
        self.assertEqual(answer, {
            "id": "mine", "text": TEXT, "ids": [1, 2, 3, 4, 5], "finish_reason": "stop",
            "seed": str(2 ** 64 - 1), "logits_hash": "fffffffffffffffe",
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "recomputed_tokens": 0,
                      "preemptions": 0, "workers_lost": 0},
            "timings": {"tokenize_ns": 0, "queue_ns": 0, "first_token_ns": 2000000,
                        "total_ns": 5000000}})

    def test_options_arrive(self):
        with Fake(COURSE) as fake:
            done = run("generate", "--max-tokens=7", "--temperature", "0.5", "--top-k", "40",
                       "--top-p", "0.25", "--min-p", "0.125", "--seed", str(2 ** 64 - 1), "--stop",
                       "a", "--stop", "Ü", "--deadline-ms", "9000", "--ignore-eos",
                       "--plain-text", "--", "-x", directory=fake.directory)
        self.assertEqual(done.returncode, 0, done.stderr)
        sent = fake.of_type("submit")[0]
        self.assertEqual(sent["prompt"], "-x")
        for field, value in {"max_tokens": 7, "temperature": 0.5, "top_k": 40, "top_p": 0.25,
                             "min_p": 0.125, "seed": 2 ** 64 - 1, "stop": ["a", "Ü"],
                             "deadline_ms": 9000, "ignore_eos": True,
                             "parse_special": False}.items():
            self.assertEqual(sent[field], value, field)
        self.assertEqual(len(sent["id"]), 32)

    def test_text_of_stdin_and_files(self):
        with Fake(COURSE) as fake, tempfile.NamedTemporaryFile() as file:
            file.write("grüß\n\n".encode())
            file.flush()
            run("generate", directory=fake.directory, stdin=b"from a pipe\n")
            run("generate", "--file", file.name, directory=fake.directory)
            run("generate", "--file", "-", directory=fake.directory, stdin=b"no newline")
            run("generate", "kept\n", directory=fake.directory)
        self.assertEqual([sent["prompt"] for sent in fake.of_type("submit")],
                         ["from a pipe", "grüß\n", "no newline", "kept\n"])

    def test_unicode_and_broken_bytes(self):
        course = [([1], "🌍 Grüße "), ([2], b"\xff\xc3"), ([3], "!")]
        with Fake(course) as fake:
            plain = run("generate", "Ω", directory=fake.directory)
            answer = run("generate", "--json", "Ω", directory=fake.directory)
        self.assertEqual(plain.stdout, "🌍 Grüße ".encode() + b"\xff\xc3!\n")
        self.assertEqual(json.loads(answer.stdout)["text"], "🌍 Grüße \ufffd\ufffd!")

    def test_a_cut_in_the_middle_is_bridged(self):
        course = [COURSE[0], CUT, COURSE[1], COURSE[2]]
        with Fake(course) as fake:
            done = run("generate", "x", directory=fake.directory)
        self.assertEqual((done.stdout.decode().replace("\n", ""), done.returncode),
                         (TEXT.replace("\n", ""), 0))
        self.assertIn(b"[the connection was cut, asking again]", done.stderr)


class Failures(unittest.TestCase):
    def check(self, done, code, *parts):
        """One sentence on stderr with all the parts, nothing on stdout."""
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(done.stdout, b"")
        first = done.stderr.decode().splitlines()[0]
        self.assertTrue(first.startswith("tandem: "), first)
        for part in parts:
            self.assertIn(part, first)

    def test_mistakes_name_option_value_and_bound(self):
        for words, *parts in [
                (["generate", "--temperature", "101", "x"], "--temperature", "0 to 100", '"101"'),
                (["generate", "--temperature", "nan", "x"], "--temperature", '"nan"'),
                (["generate", "--top-p", "0", "x"], "--top-p", "above 0", '"0"'),
                (["generate", "--top-p", "1.1", "x"], "--top-p", "at most 1"),
                (["generate", "--min-p", "-0.1", "x"], "--min-p", "0 to 1", '"-0.1"'),
                (["generate", "--top-k", "1e3", "x"], "--top-k", "whole number", '"1e3"'),
                (["generate", "--top-k", " 3", "x"], "--top-k", '" 3"'),
                (["generate", "--max-tokens", "0", "x"], "--max-tokens", "1 to 131072"),
                (["generate", "--seed", "18446744073709551616", "x"], "--seed", "2^64"),
                (["generate", "--deadline-ms", "604800001", "x"], "--deadline-ms", "604800000"),
                (["generate", "--stop", "", "x"], "--stop", "1 to 64"),
                (["generate", "--stop", "y" * 65, "x"], "--stop", "1 to 64"),
                (["generate", *["--stop", "y"] * 17, "x"], "--stop", "16"),
                (["generate", "--quiet=yes", "x"], "--quiet takes no value"),
                (["generate", "x", "--top-k"], "--top-k needs a value"),
                (["generate", "--topk", "3", "x"], "no option --topk"),
                (["generate", "-t", "x"], "no option -t"),
                (["generate", "--system", "x", "y"], "--system", "tandem generate"),
                (["health", "x"], "takes no text"),
                (["status"], "id of one request"),
                (["status", "a", "b"], "id of one request"),
                (["detokenize", "1 x"], "token id", '"x"'),
                (["generate", "--ids", "1,x"], "token id", '"x"'),
                (["generate", "--ids", "[1,1048576]"], "below 1048576"),
                (["generate", "--ids", " 1,-2"], "token id", '"-2"', "./NAME"),
                (["generate", "--ids", "-1"], "token id", '"-1"', "./NAME"),
                (["generate", "--ids", "7.ids"], "token id", '".ids"', "./NAME"),
                (["generate", "--ids", "/nowhere"], "cannot open /nowhere"),
                (["generate", "--ids", "/"], "cannot read /"),
                (["generate", "--ids", ""], "--ids must be a text that is not empty"),
                (["generate", "--ids", "1", "text"], "give the prompt once"),
                (["generate", "--ids", "1", "--file", "x"], "give the prompt once"),
                (["chat", "--ids", "1"], "--ids", "tandem chat"),
                (["detokenize", "1048576"], "below 1048576"),
                (["generate", "--file", "/nowhere", ], "/nowhere"),
                (["generate", "--file", "/etc/passwd", "x"], "once"),
                (["generate", "--file", "/", ], "cannot read /"),
                (["bogus"], "no command", '"bogus"'),
                ([], "a command is missing")]:
            with self.subTest(words=words):
                self.check(run(*words), 64, *parts)

    def test_a_zero_byte_ends_no_list_of_ids(self):
        for words in (["generate", "--ids", "-"], ["detokenize"]):
            self.check(run(*words, stdin=b"1,2\0,3"), 64, "token ids", "zero bytes")

    def test_help_follows_the_sentence(self):
        self.assertIn(b"`tandem generate --help`", run("generate", "--top-p", "2").stderr)
        self.assertIn(b"tandem COMMAND --help", run().stderr)

    def test_mistakes_that_only_the_library_sees(self):
        with Fake(COURSE) as fake:
            for words, *parts in [(["generate", ""], "prompt", "0"),
                                  (["generate", b"\xff"], "UTF-8"),
                                  (["generate", "--ids", "[]"], "ids"),
                                  (["generate", "--id", "i" * 65, "x"], "id", "64")]:
                with self.subTest(words=words):
                    done = run(*words, directory=fake.directory)
                    self.check(done, 64, *parts)
            self.assertEqual(fake.of_type("submit"), [])

    def test_a_prompt_above_the_frame_is_named(self):
        with Fake(COURSE) as fake:
            size = 2 * 1024 * 1024
            self.check(run("generate", directory=fake.directory, stdin=b"x" * (size + 5)), 64,
                       "2097152")
            self.check(run("generate", directory=fake.directory, stdin=b"x" * size), 64, "2097152")
            self.assertEqual(fake.seen, [])

    def test_no_coordinator(self):
        with tempfile.TemporaryDirectory() as directory:
            self.check(run("health", directory=directory), 69, "no coordinator runs in", directory)
            self.check(run("generate", "x", directory=directory + "/missing"), 69, "no directory",
                       "--run-dir")
            self.check(run("chat", "x", env={"TANDEM_RUN_DIR": directory}), 69, directory)
            done = run("chat", "x", "--json", directory=directory)
            self.assertEqual(done.returncode, 69)
            self.assertEqual(json.loads(done.stdout)["error"]["code"], "unavailable")

    def test_a_socket_without_a_process(self):
        with tempfile.TemporaryDirectory() as directory:
            dead = socket.socket(socket.AF_UNIX)
            dead.bind(os.path.join(directory, "client.ipc"))
            dead.close()
            self.check(run("health", directory=directory), 69, "no coordinator runs in")

    def test_a_path_too_long_for_a_socket(self):
        self.check(run("health", directory="/" + "d" * 150), 64, "too long")

    def test_a_socket_of_somebody_else(self):
        with Fake(COURSE) as fake, tempfile.TemporaryDirectory() as place:
            path = os.path.join(fake.directory, "client.ipc")
            os.chmod(fake.directory, 0o755)
            os.chmod(path, 0)
            program = shutil.copy(RUNNER.program, place)
            os.chmod(place, 0o755)
            os.chmod(program, 0o755)
            user = {"user": 65534} if os.getuid() == 0 else {}
            done = Runner(program).run("health", directory=fake.directory, cwd="/", **user)
            os.chmod(path, stat.S_IRWXU)
        self.check(done, 77, "another user")

    def test_a_silent_coordinator(self):
        with Fake(submit=lambda _: SILENCE) as fake:
            started = time.monotonic()
            done = run("generate", "--patience-ms", "400", "x", directory=fake.directory)
            self.assertLess(time.monotonic() - started, 5)
        self.assertEqual((done.returncode, done.stdout), (69, b""))
        self.assertIn(b"gave no answer for 400 ms", done.stderr)
        self.assertIn(b"[the coordinator is silent, asking again]", done.stderr)

    def test_a_coordinator_that_goes_away(self):
        def leave(_):
            os.unlink(os.path.join(fake.directory, "client.ipc"))
            fake.replier.close()
            return CUT

        with Fake(next=leave) as fake:
            done = run("generate", "--patience-ms", "400", "x", directory=fake.directory)
        self.assertEqual((done.returncode, done.stdout), (69, b""))
        self.assertIn(b"went away and did not come back within 400 ms", done.stderr)

    def test_refusals_are_told(self):
        refusal = {"type": "error", "code": "overloaded", "message": "the queue is full",
                   "field": "queue", "limit": 10000, "retry_after_ms": 250}
        with Fake(submit=refusal) as fake:
            self.check(run("generate", "x", directory=fake.directory), 1, "the queue is full",
                       "250 ms")
            done = run("generate", "--json", "x", directory=fake.directory)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(json.loads(done.stdout), {"error": {
            "code": "overloaded", "message": "the queue is full", "field": "queue",
            "limit": 10000, "retry_after_ms": 250}})

    def test_a_request_that_fails_on_its_way(self):
        error = {"type": "error", "code": "numeric_error", "message": "not finite"}
        course = [([1], "so far"), {"state": "finished", "finish": finish("error", error=error)}]
        with Fake(course) as fake:
            done = run("generate", "x", directory=fake.directory)
            answer = run("generate", "--json", "x", directory=fake.directory)
        self.assertEqual((done.returncode, done.stdout), (1, b"so far\n"))
        self.assertIn(b"tandem: not finite", done.stderr)
        self.assertEqual(answer.returncode, 1)
        value = json.loads(answer.stdout)
        self.assertEqual(value["error"], {"code": "numeric_error", "message": "not finite"})
        self.assertEqual((value["finish_reason"], value["text"]), ("error", "so far"))

    def test_a_cancel_from_elsewhere_is_no_success(self):
        course = [([1], "so far"), {"state": "finished", "finish": finish("cancelled")}]
        with Fake(course) as fake:
            done = run("generate", "x", directory=fake.directory)
        self.assertEqual((done.returncode, done.stdout), (1, b"so far\n"))

    def test_output_that_cannot_be_written_cancels(self):
        with Fake([([1], "text"), None]) as fake, open("/dev/full", "wb") as full:
            done = run("generate", "x", directory=fake.directory, stdout=full)
            self.assertEqual(done.returncode, 74, done.stderr)
            self.assertEqual(done.stderr,
                             b"tandem: cannot write the output: No space left on device\n")
            self.assertEqual(len(fake.of_type("cancel")), 1)

    def test_a_closed_pipe_cancels(self):
        with Fake([([1], "text"), ([2], "more"), None]) as fake:
            reader, writer = os.pipe()
            os.close(reader)
            done = run("generate", "x", directory=fake.directory, stdout=writer)
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (74, b""))
            self.assertEqual(len(fake.of_type("cancel")), 1)


class OnATerminal(unittest.TestCase):
    def test_control_characters_are_shown_not_obeyed(self):
        evil = "a\x1b]0;title\x07\x1b[2Jb\r\x08\x7f\u009bc\u202edef\ttab\nline é🌍"
        with Fake([([1], evil), ([2], b"\xff\x9b")]) as fake, \
                Terminal("generate", "--quiet", "x", directory=fake.directory) as terminal:
            self.assertEqual(terminal.end(), 0)
        shown = ("a\\x1b]0;title\\x07\\x1b[2Jb\\x0d\\x08\\x7f\\u009bc\\u202edef\ttab\r\nline é🌍"
                 "\\xff\\x9b\r\n")
        self.assertEqual(terminal.seen.decode(), shown)

    def test_a_message_of_the_coordinator_is_escaped_too(self):
        refusal = {"type": "error", "code": "internal", "message": "oh \x1b[31mno"}
        with Fake(submit=refusal) as fake, \
                Terminal("generate", "x", directory=fake.directory) as terminal:
            self.assertEqual(terminal.end(), 1)
        self.assertIn(b"oh \\x1b[31mno", terminal.seen)

    def test_text_appears_as_it_comes(self):
        with Fake([([1], "first"), None]) as fake, \
                Terminal("generate", "x", directory=fake.directory) as terminal:
            terminal.wait_for(b"first")
            self.assertIsNone(terminal.process.poll())
            fake.cancelled.set()
            self.assertEqual(terminal.end(), 1)

    def test_a_lost_poll_is_repeated(self):
        with Fake([COURSE[0], SILENCE, COURSE[1], COURSE[2]]) as fake, \
                Terminal("generate", "--patience-ms", "600", "x",
                         directory=fake.directory) as terminal:
            self.assertEqual(terminal.end(), 0)
        self.assertIn(b"silent, asking again]\r\nis Paris.\r\n", terminal.seen)

    def test_what_it_waits_for_is_shown(self):
        course = [{"state": "queued", "worker_ready": False},
                  {"state": "queued", "queue_position": 4},
                  {"prompt_tokens": 1400, "prompt_tokens_done": 512},
                  ([1], "text")]
        with Fake(course) as fake, \
                Terminal("generate", "x", directory=fake.directory) as terminal:
            self.assertEqual(terminal.end(), 0)
        plain = re.sub(rb"\r\x1b\[K", b"|", terminal.seen).decode()
        self.assertIn("|waiting for a worker|queued behind 4 requests|"
                      "reading the prompt: 512 of 1400 tokens|text\r\n[2 tokens", plain)

    def test_a_lost_worker_is_told_below_the_text(self):
        course = [([1], "half"), {"worker_ready": False}, {"worker_ready": False}, ([2], "whole")]
        with Fake(course) as fake, \
                Terminal("generate", "x", directory=fake.directory) as terminal:
            self.assertEqual(terminal.end(), 0)
        self.assertIn(b"half\r\n[waiting for a worker; the answer goes on below]\r\nwhole\r\n",
                      terminal.seen)

    def test_no_progress_into_a_file(self):
        course = [{"state": "queued", "queue_position": 4}, {"prompt_tokens_done": 1},
                  {"state": "queued", "worker_ready": False},
                  {"state": "queued", "worker_ready": False}, ([1], "text")]
        with Fake(course) as fake:
            done = run("generate", "x", directory=fake.directory)
            quiet = run("generate", "--quiet", "x", directory=fake.directory)
        lines = done.stderr.decode().splitlines()
        self.assertEqual((lines[0], len(lines)), ("[waiting for a worker]", 2))
        self.assertEqual(quiet.stderr, b"")

    def test_a_missing_text_is_asked_for(self):
        with Fake() as fake, Terminal("generate", directory=fake.directory) as terminal:
            self.assertEqual(terminal.end(), 64)
            self.assertIn(b"the text is missing", terminal.seen)
            self.assertEqual(fake.seen, [])


class Interrupted(unittest.TestCase):
    def test_the_first_cancels_and_the_text_so_far_stays(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number=number), Fake([([1], "so far"), None]) as fake, \
                    Terminal("generate", "--id", "mine", "x", directory=fake.directory) as terminal:
                terminal.wait_for(b"so far")
                terminal.process.send_signal(number)
                self.assertEqual(terminal.end(), 130)
                self.assertEqual([sent["id"] for sent in fake.of_type("cancel")], ["mine"])
                self.assertIn(b"ended by cancelled", terminal.seen)

    def test_json_has_the_text_so_far(self):
        with Fake([([1], "so far"), None]) as fake:
            process = subprocess.Popen([RUNNER.program, "generate", "--json", "--run-dir",
                                        fake.directory, "x"], stdout=subprocess.PIPE,
                                       env=RUNNER.environment())
            fake.wait_for("next", 2)
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=20)
        self.assertEqual(process.returncode, 130)
        answer = json.loads(output)
        self.assertEqual((answer["text"], answer["finish_reason"]), ("so far", "cancelled"))

    def test_the_second_leaves_at_once(self):
        with Fake([([1], "so far"), SILENCE], cancel=lambda _: SILENCE) as fake, \
                Terminal("generate", "x", directory=fake.directory) as terminal:
            terminal.wait_for(b"so far")
            terminal.interrupt()
            fake.wait_for("cancel")
            self.assertIsNone(terminal.process.poll())
            started = time.monotonic()
            terminal.interrupt()
            self.assertEqual(terminal.end(), 130)
            self.assertLess(time.monotonic() - started, 3)

    def test_before_the_request_is_accepted(self):
        def accept_late(_):
            fake.wait_for("cancel")
            return {"type": "error", "code": "cancelled", "message": "cancelled by a client"}

        with Fake([], submit=accept_late) as fake, \
                Terminal("generate", "--id", "mine", "x", directory=fake.directory) as terminal:
            fake.wait_for("submit")
            terminal.interrupt()
            self.assertEqual(terminal.end(), 130)

    def test_a_cancel_that_overtakes_the_submission_is_repeated(self):
        unknown = {"type": "error", "code": "not_found", "message": "no such request",
                   "instance": b"i" * 16}

        def accept_late(request):
            fake.wait_for("cancel")
            return fake.on_submit(request)

        def cancel(request):
            return unknown if len(fake.of_type("cancel")) == 1 else fake.on_cancel(request)

        with Fake([None], submit=accept_late, cancel=cancel) as fake, \
                Terminal("generate", "--id", "mine", "x", directory=fake.directory) as terminal:
            fake.wait_for("submit")
            terminal.interrupt()
            self.assertEqual(terminal.end(), 130)
            self.assertEqual(len(fake.of_type("cancel")), 2)


class Chat(unittest.TestCase):
    def test_one_message(self):
        with Fake(COURSE) as fake:
            done = run("chat", "What", "is it?", "--system", "be brief", directory=fake.directory)
        self.assertEqual((done.stdout.decode(), done.returncode), (TEXT + "\n", 0))
        self.assertEqual(fake.of_type("submit")[0]["messages"],
                         [{"role": "system", "content": "be brief"},
                          {"role": "user", "content": "What is it?"}])

    def test_a_message_through_a_pipe(self):
        with Fake(COURSE) as fake:
            run("chat", directory=fake.directory, stdin=b"hello\n")
        self.assertEqual(fake.of_type("submit")[0]["messages"],
                         [{"role": "user", "content": "hello"}])

    def test_a_conversation_remembers(self):
        with Fake(COURSE) as fake, \
                Terminal("chat", "--system", "be brief", directory=fake.directory) as terminal:
            terminal.wait_for(b"> ")
            terminal.type("Grüße\n".encode())
            terminal.wait_for(b"tokens/s")
            terminal.wait_for(b"]\r\n> ")
            terminal.type(b"second\n")
            fake.wait_for("submit", 2)
            terminal.wait_for(b"second")
            terminal.type(b"/new\n")
            terminal.wait_for(b"[a new conversation]")
            terminal.type(b"third\n")
            fake.wait_for("submit", 3)
            terminal.type(b"/help\n")
            terminal.wait_for(b"/exit ends")
            terminal.type(b"/exit\n")
            self.assertEqual(terminal.end(), 0)
        system = ("system", "be brief")
        turns = [[(m["role"], m["content"]) for m in sent["messages"]]
                 for sent in fake.of_type("submit")]
        self.assertEqual(turns[0], [system, ("user", "Grüße")])
        self.assertEqual(turns[1], [system, ("user", "Grüße"), ("assistant", TEXT),
                                    ("user", "second")])
        self.assertEqual(turns[2], [system, ("user", "third")])
        self.assertEqual(len({sent["id"] for sent in fake.of_type("submit")}), 3)

    def test_an_interrupted_answer_does_not_end_it(self):
        with Fake([([1], "so far"), None]) as fake, \
                Terminal("chat", directory=fake.directory) as terminal:
            terminal.wait_for(b"> ")
            terminal.type(b"first\n")
            terminal.wait_for(b"so far")
            terminal.interrupt()
            terminal.wait_for(b"ended by cancelled]\r\n> ")
            fake.course = COURSE
            terminal.type(b"second\n")
            terminal.wait_for(b"Paris.")
            terminal.wait_for(b"]\r\n> ")
            terminal.type(b"\x04")
            self.assertEqual(terminal.end(), 0)
        self.assertEqual([m["content"] for m in fake.of_type("submit")[1]["messages"]],
                         ["first", "so far", "second"])

    def test_a_turn_that_failed_is_taken_back(self):
        refusal = {"type": "error", "code": "overloaded", "message": "the queue is full"}
        with Fake(COURSE, submit=refusal) as fake, \
                Terminal("chat", directory=fake.directory) as terminal:
            terminal.wait_for(b"> ")
            terminal.type(b"first\n")
            terminal.wait_for(b"the queue is full")
            fake.answers.clear()
            terminal.type(b"second\n")
            terminal.wait_for(b"Paris.")
            terminal.type(b"\x04")
            self.assertEqual(terminal.end(), 0)
        self.assertEqual([m["content"] for m in fake.of_type("submit")[1]["messages"]], ["second"])

    def test_interrupt_at_the_prompt_leaves(self):
        with Fake() as fake, Terminal("chat", directory=fake.directory) as terminal:
            terminal.wait_for(b"> ")
            terminal.interrupt()
            self.assertEqual(terminal.end(), 130)


class Questions(unittest.TestCase):
    def test_health_is_an_exit_code(self):
        with Fake() as fake:
            ready = run("health", directory=fake.directory)
            fake.answers["health"] = {"type": "health", "live": True, "ready": False,
                                      "reasons": ["no_worker"], "instance": b"\xab" * 16}
            waiting = run("health", directory=fake.directory)
            value = run("health", "--json", directory=fake.directory)
        self.assertEqual((ready.stdout, ready.returncode), (b"ready\n", 0))
        self.assertEqual((waiting.stdout, waiting.returncode), (b"not ready: no_worker (start tandem-worker)\n", 1))
        self.assertEqual(value.returncode, 1)
        self.assertEqual(json.loads(value.stdout), {
            "live": True, "ready": False, "draining": False, "reasons": "no_worker",
            "instance": "ab" * 16, "epoch": 0, "uptime_ms": 0})

    def test_stats(self):
        answer = {"type": "stats", "instance": b"i" * 16, "requests_submitted": 12,
                  "blocks_free": 2 ** 40}
        with Fake(stats=answer) as fake:
            text = run("stats", directory=fake.directory)
            value = json.loads(run("stats", "--json", directory=fake.directory).stdout)
        self.assertRegex(text.stdout.decode(), r"(?m)^requests_submitted +12$")
        self.assertEqual((value["requests_submitted"], value["blocks_free"]), (12, 2 ** 40))

    def test_models(self):
        limits = {"slots": 64, "block_tokens": 16, "pool_tokens": 5000, "step_tokens": 512,
                  "prompt_bytes_max": 1 << 20, "frame_bytes_max": 2 << 20,
                  "queue_requests_max": 10000, "queue_bytes_max": 1 << 28,
                  "kept_requests_max": 10000, "kept_ms": 120000, "orphan_ms": 30000,
                  "wait_ms_max": 20000}
        model = {"name": "small", "architecture": "llama", "metadata_hash": b"\1" * 16,
                 "context": 2048, "vocabulary": 49152, "chat_template": True}
        with Fake(models={"type": "models", "models": [model], **limits}) as fake:
            text = run("models", directory=fake.directory)
            value = json.loads(run("models", "--json", directory=fake.directory).stdout)
        self.assertRegex(text.stdout.decode(), r"(?m)^name +small$")
        self.assertRegex(text.stdout.decode(), r"(?m)^context +2048 tokens$")
        self.assertEqual(value["models"][0]["vocabulary"], 49152)
        self.assertEqual(value["models"][0]["slots"], 64)
        self.assertRegex(text.stdout.decode(), r"(?m)^text +yes$")
        self.assertIs(value["models"][0]["ids_only"], False)
        with Fake(models={"type": "models", "models": [{**model, "ids_only": True}], **limits}) as fake:
            text = run("models", directory=fake.directory)
        self.assertRegex(text.stdout.decode(), r"(?m)^text +no: token ids only \(generate --ids\)$")

    def test_tokens_there_and_back(self):
        with Fake(tokenize={"type": "tokens", "ids": [1, 22, 333]},
                  detokenize={"type": "text", "text": b"a\xff"}) as fake:
            ids = run("tokenize", "some text", "--plain-text", directory=fake.directory)
            value = run("tokenize", "--json", directory=fake.directory, stdin=b"kept\n")
            run("tokenize", "--chat", "--system", "s", "hello", directory=fake.directory)
            text = run("detokenize", directory=fake.directory, stdin=ids.stdout)
            again = run("detokenize", "[1,", "22, 333]", "--json", directory=fake.directory)
        self.assertEqual(ids.stdout, b"1 22 333\n")
        self.assertEqual(json.loads(value.stdout), {"ids": [1, 22, 333]})
        sent = fake.of_type("tokenize")
        self.assertEqual((sent[0]["prompt"], sent[0]["parse_special"]), ("some text", False))
        self.assertEqual(sent[1]["prompt"], "kept\n")
        self.assertEqual([m["role"] for m in sent[2]["messages"]], ["system", "user"])
        self.assertEqual(text.stdout, b"a\xff")
        self.assertEqual(json.loads(again.stdout), {"text": "a\ufffd"})
        self.assertEqual({request["ids"] for request in fake.of_type("detokenize")},
                         {b"\1\0\0\0\x16\0\0\0\x4d\1\0\0"})

    def test_ids_in_ids_out(self):
        with Fake([([7], ""), ([88, 999], "text")]) as fake:
            words = ("generate", "--ids", "1, 22 [333]")
            plain = run(*words, directory=fake.directory)
            value = json.loads(run(*words, "--json", directory=fake.directory).stdout)
            led = run("generate", "--ids", " 1 22 333", directory=fake.directory)
            self.assertEqual(led.returncode, 0, led.stderr)
            piped = run("generate", "--ids", "-", directory=fake.directory, stdin=b"[1,22,\n333]\n")
        self.assertEqual((plain.returncode, plain.stdout), (0, b"7 88 999\n"), plain.stderr)
        self.assertEqual(piped.stdout, plain.stdout)
        self.assertEqual((value["ids"], value["text"]), ([7, 88, 999], "text"))
        for request in fake.of_type("submit"):
            self.assertEqual(request["ids"], b"\1\0\0\0\x16\0\0\0\x4d\1\0\0")
            self.assertNotIn("prompt", request)

    def test_status_and_cancel(self):
        answer = {"type": "status", "id": "mine", "sequence": 5, "seed": 6, "state": "queued",
                  "queue_position": 7, "prompt_tokens": 8, "age_ms": 1500}
        with Fake(status=answer) as fake:
            text = run("status", "mine", directory=fake.directory)
            value = json.loads(run("status", "mine", "--json", directory=fake.directory).stdout)
            done = run("cancel", "mine", directory=fake.directory)
        self.assertTrue(text.stdout.startswith(b"queued\nbefore it    7 requests\n"), text.stdout)
        self.assertEqual((value["state"], value["queue_position"], value["age_ms"]),
                         ("queued", 7, 1500))
        self.assertEqual((done.returncode, done.stdout), (0, b""))
        self.assertEqual(fake.of_type("cancel")[0]["id"], "mine")

    def test_help_and_version(self):
        overview = run("--help").stdout.decode()
        for command in ("generate", "chat", "status", "cancel", "stats", "health", "models",
                        "tokenize", "detokenize"):
            self.assertIn(command, overview)
            done = run(command, "--help", "--bogus")
            self.assertEqual(done.returncode, 0)
            self.assertIn("--run-dir DIR", done.stdout.decode())
        self.assertRegex(run("--version").stdout.decode(), r"^tandem \d+\.\d+\.\d+\n$")


if __name__ == "__main__":
    RUNNER.program = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=1)
