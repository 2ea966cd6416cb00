"""Who may be the worker: refusals by name, standby, hostile peers at the attach socket and at an epoch's socket."""
import array
import os
import signal
import socket
import subprocess
import time

from tandem_harness import (BIN, EXIT_CONFIGURATION, EXIT_PERMISSION, PATIENCE, TandemTest, main, model_path,
                            sp_wire, wait_for)

NOBODY = 65534
PAIR = 0x10


class Attach(TandemTest):
    def setUp(self):
        super().setUp()
        self.coordinator = self.system.start_coordinator("--slots", "8")

    def assert_refused(self, worker, reason):
        self.assertEqual(worker.exit_code(), EXIT_CONFIGURATION)
        self.assertEqual([event["reason"] for event in worker.events("attach_refused")], [reason])

    def scripted(self, *script):
        return subprocess.Popen([os.path.join(BIN, "scripted_worker"), self.system.run_dir,
                                 model_path("tiny"), "100", *script], stdout=subprocess.PIPE,
                                text=True)

    def end(self, process):
        process.kill()
        process.wait()
        process.stdout.close()

    def test_refused_by_name(self):
        self.assert_refused(self.system.start_worker(model="tiny-q8_0", wait=False), "model")
        self.assert_refused(self.system.start_worker("--kv-type", "f32", wait=False), "geometry")
        self.assert_refused(self.system.start_worker("--block-tokens", "32", wait=False), "geometry")
        self.assert_refused(self.system.start_worker("--slots", "4", wait=False), "capacity")
        self.assert_refused(self.system.start_worker("--context", "100", wait=False), "capacity")
        self.assert_refused(self.system.start_worker("--kv-pool-bytes", "32M", wait=False),
                            "capacity")
        self.assert_refused(self.system.start_worker("--step-tokens", "16", wait=False), "capacity")
        worker = self.system.start_worker()  # nothing of this kept a good one away
        worker.kill()
        # Same shape and vocabulary, other weights: the first worker has pinned them.
        self.assert_refused(self.system.start_worker(model="tiny-other", wait=False), "model")

    def test_refused_by_name_what_only_a_script_says(self):
        for script, reason in ((("version=99",), "version"), (("layout=1",), "version"),
                               (("segment=none",), "segment"),
                               (("segment=unsealed",), "segment")):
            process = self.scripted(*script)
            output, _ = process.communicate(timeout=20)
            self.assertEqual(output, f"refused reason={reason}\n")
            self.assertEqual(process.returncode, EXIT_CONFIGURATION)
        # The first worker of an instance pins tensors and arithmetic for those that follow.
        self.system.start_worker().kill()
        process = self.scripted()
        output, _ = process.communicate(timeout=20)
        self.assertIn(output, ("refused reason=arithmetic\n", "refused reason=model\n"))

    def test_another_arithmetic_cannot_continue_a_stream(self):
        first = self.scripted("arithmetic=cpu-2-f16")
        self.assertEqual(first.stdout.readline(), "attached epoch=1\n")
        self.end(first)
        second = self.scripted("arithmetic=cuda-1-bf16")
        self.assertEqual(second.communicate(timeout=20)[0], "refused reason=arithmetic\n")
        third = self.scripted("arithmetic=cpu-2-f16", "tensors=1")
        self.assertEqual(third.communicate(timeout=20)[0], "refused reason=model\n")
        fourth = self.scripted("arithmetic=cpu-2-f16")
        self.assertEqual(fourth.stdout.readline(), "attached epoch=2\n")
        self.end(fourth)

    def test_second_worker_waits_and_takes_over(self):
        first = self.system.start_worker()
        second = self.system.start_worker(wait=False)
        second.wait_event("worker_standby")
        client = self.system.client()
        alone = client.generate("alone", prompt="Once", max_tokens=40, ignore_eos=True)
        first.kill()
        second.wait_event("worker_attached")
        after = client.generate("after", prompt="Once", max_tokens=40, ignore_eos=True)
        self.assertEqual(alone.outcome(), after.outcome())
        self.assertEqual(len(second.events("model_loaded")), 1)
        third = self.system.start_worker(wait=False)
        third.wait_event("worker_standby")
        third.send(signal.SIGTERM)
        self.assertEqual(third.exit_code(5), 0)
        self.assertTrue(wait_for(lambda: self.system.stats()["workers_standby"] == 0, 5,
                                 "the standby is forgotten"))

    def test_only_a_few_standbys_wait(self):
        workers = [self.scripted() for _ in range(7)]
        # Which of them comes first is chance: one works, four wait, two hear that four are enough.
        words = sorted(worker.stdout.readline().split()[0] for worker in workers)
        self.assertEqual(words, ["attached"] + ["refused"] * 2 + ["standby"] * 4)
        self.assertEqual(self.system.stats()["workers_standby"], 4)
        for worker in workers:
            self.end(worker)

    def test_strangers_at_the_attach_socket(self):
        path = os.path.join(self.system.run_dir, "attach.sock")
        before = self.coordinator.descriptors()
        for i in range(50):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(path)
                if i % 3 == 1:
                    stranger.send(b"\xdd\x0f\x00\x00\x00")
                if i % 3 == 2:
                    with open(os.devnull, "rb") as null:
                        rights = array.array("i", [null.fileno()] * 3)
                        stranger.sendmsg([b"\x81\x01\x01"],
                                         [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(20)]
        for stranger in silent:  # more than there are places; they say nothing
            stranger.connect(path)
        worker = self.system.start_worker(wait=False)
        worker.wait_event("worker_attached", seconds=20)
        for stranger in silent:
            stranger.close()
        wait_for(lambda: self.coordinator.descriptors() <= before + 12, 10,
                 "descriptors of strangers are closed")

    def test_stranger_at_the_socket_of_an_epoch(self):
        self.system.start_worker()
        stranger = socket.socket(socket.AF_UNIX)
        stranger.settimeout(10)
        stranger.connect(os.path.join(self.system.run_dir, "worker.1.ipc"))
        try:
            stranger.sendall(sp_wire.HELLO.pack(b"\0SP\0", PAIR, 0))
            sp_wire.send_frame(stranger, b"\x80")
        except OSError:
            pass  # cut off already
        answer = self.system.client().generate("a", prompt="Hi", max_tokens=20, ignore_eos=True)
        self.assertEqual(len(answer.tokens), 20)
        self.assertEqual(self.system.stats()["epoch"], 1)
        stranger.close()

    def test_another_user_may_not_attach(self):
        if os.getuid() != 0:
            return  # one user cannot pose as another
        for folder in (self.system.folder,):
            os.chmod(folder, 0o755)
        program = os.path.join(self.system.folder, "scripted")
        for source, target in ((os.path.join(BIN, "scripted_worker"), program),
                               (model_path("tiny"), os.path.join(self.system.folder, "m.gguf"))):
            with open(source, "rb") as file, open(target, "wb") as copy:
                copy.write(file.read())
            os.chmod(target, 0o755)
        # With the group it passes the socket's mode, and is refused by its user.
        done = subprocess.run(["setpriv", f"--reuid={NOBODY}", "--regid=0", "--clear-groups",
                               program, self.system.run_dir,
                               os.path.join(self.system.folder, "m.gguf"), "100"], timeout=30,
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout),
                         (EXIT_CONFIGURATION, "refused reason=uid\n"))

    def test_a_worker_without_the_right_to_the_socket(self):
        os.chmod(os.path.join(self.system.run_dir, "attach.sock"), 0)
        if os.getuid() == 0:
            return  # root passes every mode
        worker = self.system.start_worker(wait=False)
        self.assertEqual(worker.exit_code(), EXIT_PERMISSION)

    def test_many_attachments_leave_nothing_behind(self):
        self.system.start_worker().kill()
        wait_for(lambda: self.system.stats()["epochs_abandoned"] == 0, 10, "end of the first epoch")
        time.sleep(2 * PATIENCE)  # coordinator/undertaker.h: half a second of quiet, then it closes
        before = self.coordinator.descriptors()
        for _ in range(5):
            self.system.start_worker().kill()
        wait_for(lambda: self.system.stats()["epochs_abandoned"] == 0, 10, "end of all epochs")
        wait_for(lambda: self.coordinator.descriptors() <= before + 2, 10, "burials")
        self.assertEqual(sorted(os.listdir(self.system.run_dir)),
                         ["attach.sock", "client.ipc", "lock"])


if __name__ == "__main__":
    main()
