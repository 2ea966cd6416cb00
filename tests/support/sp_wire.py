"""The wire of nng (Scalability Protocols, REQ and REP over an ipc socket) in plain Python, so that tests
see and send every byte themselves. docs/CLIENT.md explains it."""
import socket
import struct
import threading

import msgpack

REQ, REP = 0x30, 0x31
HELLO = struct.Struct(">4sHH")  # 00 'S' 'P' 00, protocol, 0
FRAME = struct.Struct(">BQ")    # 01, length
TOP_BIT = 0x80000000            # ends the stack of request ids


class Closed(Exception):
    """The other side closed the connection."""


def read_exactly(connection, count):
    parts = bytearray()
    while len(parts) < count:
        piece = connection.recv(count - len(parts))
        if not piece:
            raise Closed
        parts += piece
    return bytes(parts)


def shake_hands(connection, protocol):
    connection.sendall(HELLO.pack(b"\0SP\0", protocol, 0))
    magic, peer, _ = HELLO.unpack(read_exactly(connection, HELLO.size))
    assert magic == b"\0SP\0" and peer == REQ + REP - protocol, (magic, peer)


def send_frame(connection, body):
    connection.sendall(FRAME.pack(1, len(body)) + body)


def receive_frame(connection):
    kind, length = FRAME.unpack(read_exactly(connection, FRAME.size))
    assert kind == 1, kind
    return read_exactly(connection, length)


class Requester:
    """One question at a time."""

    def __init__(self, path, timeout=20):
        self.connection = socket.socket(socket.AF_UNIX)
        self.number = 0
        try:
            self.connection.settimeout(timeout)
            self.connection.connect(path)
            shake_hands(self.connection, REQ)
        except (OSError, Closed):
            self.connection.close()
            raise

    def ask_bytes(self, body):
        self.number += 1
        send_frame(self.connection, struct.pack(">I", TOP_BIT | self.number) + body)
        while True:
            answer = receive_frame(self.connection)
            if struct.unpack(">I", answer[:4])[0] == TOP_BIT | self.number:
                return answer[4:]

    def ask(self, **fields):
        return msgpack.unpackb(self.ask_bytes(msgpack.packb(fields)), raw=False,
                               strict_map_key=False)

    def close(self):
        self.connection.close()


CUT = object()      # an answer of Replier's handler: close the connection
SILENCE = object()  # never answer


class Replier:
    """Answers every question on a thread of its own: `handler(body)` returns bytes, CUT or SILENCE.
    A handler may block; other questions are answered meanwhile."""

    def __init__(self, path, handler):
        self.handler = handler
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(64)
        self.connections = []
        self.accepting = self._start(self._accept)

    @staticmethod
    def _start(function, *arguments):
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        thread.start()
        return thread

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection):
        lock = threading.Lock()
        try:
            shake_hands(connection, REP)
            while True:
                frame = receive_frame(connection)
                self._start(self._answer, connection, lock, frame[:4], frame[4:])
        except (Closed, OSError):
            with lock:
                connection.close()

    def _answer(self, connection, lock, head, body):
        answer = self.handler(body)
        if answer is SILENCE:
            return
        try:
            with lock:
                if answer is CUT:
                    connection.shutdown(socket.SHUT_RDWR)
                else:
                    send_frame(connection, head + answer)
        except OSError:
            pass  # the client left first

    def close(self):
        if self.listener.fileno() < 0:
            return  # closed before
        # The thread must be out of accept() before the number of its descriptor is free again.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.accepting.join()
        self.listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
