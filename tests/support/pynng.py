"""Stands in for the package pynng, which the tests do not need: as much of Req0 as
client/python/tandem_example.py uses, over sp_wire."""
import sp_wire


class ConnectionRefused(Exception):
    pass


class ConnectionReset(Exception):
    pass


class Timeout(Exception):
    pass


class Req0:
    def __init__(self, dial, **options):
        assert options["block_on_dial"] and options["resend_time"] == -1
        assert options["recv_max_size"] > 8 << 20 and options["recv_timeout"] > 20_000
        self.path = dial.removeprefix("ipc://")
        self.requester = None
        try:
            self.connect()
        except OSError as error:
            raise ConnectionRefused from error

    def connect(self):
        self.requester = sp_wire.Requester(self.path)

    def send(self, frame):
        self.frame = frame

    def recv(self):
        try:
            return self.requester.ask_bytes(self.frame)
        except sp_wire.Closed as error:
            self.connect()
            raise ConnectionReset from error
