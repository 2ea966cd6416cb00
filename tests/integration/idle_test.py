"""Idle costs no processor time, and work leaves no memory behind."""
import os
import socket
import time

from tandem_harness import PATIENCE, Streams, TandemTest, main

IDLE_SECONDS = 10
CPU_MS_MAX = 20
GROWTH_BYTES_MAX = 16 << 20


class Idle(TandemTest):
    def cpu_of_idle_seconds(self, processes):
        before = [process.cpu_ms() for process in processes]
        time.sleep(IDLE_SECONDS)
        return [process.cpu_ms() - start for process, start in zip(processes, before)]

    def work(self, name, count):
        streams = Streams(self.system)
        for number in range(count):
            streams.start(f"{name}-{number}", prompt="a word and " * (1 + number * 3),
                          max_tokens=50, ignore_eos=True)
        streams.join()

    def test_after_work(self):
        coordinator = self.system.start_coordinator()
        worker = self.system.start_worker()
        self.work("warm", 40)
        time.sleep(4)  # until the worker gives the pool back
        before = [process.resident_bytes() for process in (coordinator, worker)]
        for round_number in range(3):
            self.work(f"round{round_number}", 40)
        time.sleep(4)
        after = [process.resident_bytes() for process in (coordinator, worker)]
        for start, end in zip(before, after):
            self.assertLess(end - start, GROWTH_BYTES_MAX)
        for cpu_ms in self.cpu_of_idle_seconds((coordinator, worker)):
            self.assertLessEqual(cpu_ms, CPU_MS_MAX * PATIENCE)

    def test_without_the_other(self):
        coordinator = self.system.start_coordinator()
        (alone,) = self.cpu_of_idle_seconds((coordinator,))
        self.assertLessEqual(alone, CPU_MS_MAX * PATIENCE)
        worker = self.system.start_worker()
        coordinator.kill()
        worker.wait_event("coordinator_lost")
        (waiting,) = self.cpu_of_idle_seconds((worker,))
        self.assertLessEqual(waiting, CPU_MS_MAX * PATIENCE)

    def test_after_clients_that_hung_up_at_once(self):
        """nng forgets such connections, and its poller would spin over them for ever."""
        coordinator = self.system.start_coordinator()
        for _ in range(30):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(os.path.join(self.system.run_dir, "client.ipc"))
        # Two probes without an answer, a new listener, two sweeps; it does not happen every time.
        time.sleep(14)
        (cpu_ms,) = self.cpu_of_idle_seconds((coordinator,))
        self.assertLessEqual(cpu_ms, CPU_MS_MAX * PATIENCE)
        self.assertTrue(self.system.client().ask(type="health")["live"])


if __name__ == "__main__":
    main()
