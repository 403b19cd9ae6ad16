"""A server of known schedule for the client's self-test: it logs when it sent each chunk. Knows nothing of the client.

  python -m kit.client.echo STEP_SECONDS [CORE]     the port on stdout; the log, once stdin ends

It answers `/generate` with frames of SGLang's shape and usual size, one token each, every STEP_SECONDS, evenly spread
over its connections. Nothing here is a model.
"""

import heapq
import os
import re
import select
import socket
import sys
import time

import msgspec

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_FRAME = (
    b'data: {"text":"' + b"word " * 150 + b'","output_ids":[],"meta_info":{"id":"echo","finish_reason":%s,'
    b'"prompt_tokens":1,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":%d,'
    b'"cached_tokens":0,"cached_tokens_details":null,"dp_rank":null}}\n\n'
)
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class EchoLog(msgspec.Struct):
    """What really happened to one request; CLOCK_MONOTONIC seconds. `prompt` is its text, which names it."""

    prompt: str
    received_s: float
    sent_s: list[float] = []


class _Sampling(msgspec.Struct):
    max_new_tokens: int


class _Request(msgspec.Struct):
    text: str
    sampling_params: _Sampling


class _Peer:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""
        self.frames = 0
        self.log: EchoLog | None = None


class _Echo:
    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._poll = select.epoll()
        self._peers: dict[int, _Peer] = {}
        self._due: list[tuple[float, int]] = []
        self._log: list[EchoLog] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._poll.register(self._listener, select.EPOLLIN)
        self._poll.register(sys.stdin.fileno(), select.EPOLLIN)
        self._encoder = msgspec.json.Encoder()

    def serve(self) -> bytes:
        """Serves until stdin ends; returns the log as JSON."""
        sys.stdout.write(f"{self._listener.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            wait_s = max(self._due[0][0] - time.monotonic(), 0.0) if self._due else -1
            for fd, _ in self._poll.poll(wait_s):
                if fd == sys.stdin.fileno():
                    return self._encoder.encode(self._log)
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._read(self._peers[fd])
            self._send_due()

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers[sock.fileno()] = _Peer(sock)
        self._poll.register(sock, select.EPOLLIN)

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            return self._forget(peer)
        peer.received += data
        head, found, body = peer.received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if found and length and len(body) >= int(length[1]):
            self._start(peer, msgspec.json.decode(body, type=_Request))
        return None

    def _start(self, peer: _Peer, request: _Request) -> None:
        now_s = time.monotonic()
        peer.received = b""
        peer.frames = request.sampling_params.max_new_tokens
        peer.log = EchoLog(request.text, now_s)
        self._log.append(peer.log)
        peer.sock.send(_HEAD)
        spread_s = self._step_s * ((len(self._log) * 0.618034) % 1.0)
        heapq.heappush(self._due, (now_s + self._step_s + spread_s, peer.sock.fileno()))

    def _send_due(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            due_s, fd = self._due[0]
            peer = self._peers.get(fd)
            if peer is not None and peer.log is not None and self._send(peer, peer.log):
                heapq.heapreplace(self._due, (due_s + self._step_s, fd))
            else:
                heapq.heappop(self._due)

    def _send(self, peer: _Peer, log: EchoLog) -> bool:
        """Sends one frame; whether more are to come."""
        count = len(log.sent_s) + 1
        last = count >= peer.frames
        frame = _FRAME % (b'{"type":"length"}' if last else b"null", count)
        message = b"%x\r\n%b\r\n%b" % (len(frame), frame, _END if last else b"")
        log.sent_s.append(time.monotonic())
        try:
            peer.sock.send(message)
        except OSError:
            return False
        return not last

    def _forget(self, peer: _Peer) -> None:
        self._poll.unregister(peer.sock)
        del self._peers[peer.sock.fileno()]
        peer.sock.close()


def main() -> None:
    """Serves one self-test."""
    if len(sys.argv) > 2:
        os.sched_setaffinity(0, [int(sys.argv[2])])
    log = _Echo(float(sys.argv[1])).serve()
    sys.stdout.buffer.write(log)


if __name__ == "__main__":
    main()
