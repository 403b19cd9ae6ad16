"""A server on a real socket that misbehaves as the prompt says: `good`, or the name of a function in `WAYS`."""

import gzip
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED_END = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
WORDS = (" the", " größte", " 猫", ' "completion_tokens":99,', " \\", " end")


def frame(tokens: int, text: str, finish: str | None = None, **meta: Any) -> bytes:
    """One cumulative frame of /generate in SGLang's shape."""
    reason = {"type": finish, "length": tokens} if finish else None
    body = {"text": text, "output_ids": list(range(tokens)), "meta_info": {
        "id": "x", "finish_reason": reason, "prompt_tokens": 7, "num_retractions": 0, "reasoning_tokens": 0,
        "completion_tokens": tokens, "cached_tokens": 0, "dp_rank": None, **meta}}  # fmt: skip
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def answer(tokens: int = 6) -> list[bytes]:
    """A good answer's frames, one to three tokens each, with its end."""
    counts = sorted({1, *range(1, tokens, 2), tokens})
    texts = ["".join(WORDS[:count]) for count in counts]
    frames = [frame(count, text) for count, text in zip(counts[:-1], texts, strict=False)]
    return [*frames, frame(tokens, texts[-1], "length", e2e_latency=0.5, spec_verify_ct=3), DONE]


def http_chunk(data: bytes) -> bytes:
    """One chunk of a chunked reply."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def chunked(parts: list[bytes]) -> bytes:
    """A whole chunked reply without its head."""
    return b"".join(map(http_chunk, parts)) + CHUNKED_END


def good(peer: socket.socket) -> None:
    peer.sendall(HEAD + chunked(answer()))


def byte_by_byte(peer: socket.socket) -> None:
    for byte in HEAD + chunked(answer()):
        peer.sendall(bytes([byte]))


def utf8_cut(peer: socket.socket) -> None:
    text = b"".join(answer())
    cut = text.index("猫".encode()) + 1
    peer.sendall(HEAD + http_chunk(text[:cut]))
    time.sleep(0.02)
    peer.sendall(http_chunk(text[cut:]) + CHUNKED_END)


def keep_alive_comments(peer: socket.socket) -> None:
    peer.sendall(HEAD + chunked([b": ping\n\n", b"event: token\r\n", *answer(), b": bye\n\n"]))


def silence(peer: socket.socket) -> None:
    peer.sendall(HEAD + http_chunk(answer()[0]))
    peer.recv(1)


def no_answer(peer: socket.socket) -> None:
    peer.recv(1)


def never_ends(peer: socket.socket) -> None:
    peer.sendall(HEAD)
    for tokens in range(1, 10_000):
        peer.sendall(http_chunk(frame(tokens, "more")))
        time.sleep(0.02)


def done_but_open(peer: socket.socket) -> None:
    peer.sendall(HEAD + b"".join(map(http_chunk, answer())))
    peer.recv(1)


def reset(peer: socket.socket) -> None:
    peer.sendall(HEAD + http_chunk(answer()[0]))
    time.sleep(0.02)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def closed(peer: socket.socket) -> None:
    peer.sendall(HEAD + http_chunk(answer()[0]))
    peer.close()


def closed_at_once(peer: socket.socket) -> None:
    peer.close()


def truncated_json(peer: socket.socket) -> None:
    peer.sendall(HEAD + chunked([answer()[0], answer()[1][:-20] + b"\n\n", DONE]))


def invalid_json_at_the_end(peer: socket.socket) -> None:
    last = answer()[-2].replace(b'"dp_rank":null', b'"dp_rank":nil')
    peer.sendall(HEAD + chunked([*answer()[:-2], last, DONE]))


def ends_within_a_frame(peer: socket.socket) -> None:
    peer.sendall(HEAD + chunked([answer()[0], answer()[1][:-20]]))


def ends_early(peer: socket.socket) -> None:
    peer.sendall(HEAD + chunked(answer()[:2]))


def error_frame(peer: socket.socket) -> None:
    peer.sendall(HEAD + chunked([answer()[0], b'data: {"error":{"message":"out of memory"}}\n\n', DONE]))


def abort(peer: socket.socket) -> None:
    last = {"type": "abort", "message": "too many requests"}
    body = {"text": "", "output_ids": [1], "meta_info": {"finish_reason": last, "completion_tokens": 1}}
    peer.sendall(HEAD + chunked([b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n", DONE]))


def no_token(peer: socket.socket) -> None:
    peer.sendall(HEAD + chunked([frame(0, "", "stop"), DONE]))


def not_a_stream(peer: socket.socket) -> None:
    body = b'{"text":"all at once"}'
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def too_many_requests(peer: socket.socket) -> None:
    body = b'{"error": "slow\\ndown"}'
    peer.sendall(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


def unavailable(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n")
    peer.sendall(chunked([b"try ", b"later"]))


def internal_error_and_close(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 500 Internal Server Error\r\nConnection: close\r\nContent-Length: 5\r\n\r\nsorry")
    peer.close()


def compressed(peer: socket.socket) -> None:
    body = gzip.compress(b"".join(answer()))
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def no_http(peer: socket.socket) -> None:
    peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def ends_with_connection(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + b"".join(answer()))
    peer.close()


def good_then_close(peer: socket.socket) -> None:
    peer.sendall(HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + chunked(answer()))
    peer.close()


def continue_first(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + chunked(answer()))


def slow(peer: socket.socket) -> None:
    time.sleep(0.05)
    good(peer)


WAYS: dict[str, Callable[[socket.socket], None]] = {
    way.__name__: way
    for way in (
        good, byte_by_byte, utf8_cut, keep_alive_comments, silence, no_answer, never_ends, done_but_open, reset,
        closed, closed_at_once, truncated_json, invalid_json_at_the_end, ends_within_a_frame, ends_early, error_frame,
        abort, no_token, not_a_stream, too_many_requests, unavailable, internal_error_and_close, compressed, no_http,
        ends_with_connection, good_then_close, continue_first, slow,
    )
}  # fmt: skip


class BadServer:
    """Serves each connection in a thread; `seen` holds the bodies in the order they came."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self.seen: list[dict[str, Any]] = []
        self.connections = 0
        self.replies: dict[str, bytes] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Stops listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                for body in _requests(peer):
                    self.seen.append(body)
                    self._reply(peer, body)
            except OSError:
                return  # the client gave up, or the way was to close

    def _reply(self, peer: socket.socket, body: dict[str, Any]) -> None:
        prompt = body["text"] if "text" in body else body["messages"][-1]["content"]
        if prompt in self.replies:
            peer.sendall(HEAD + self.replies[prompt])
        else:
            WAYS[prompt](peer)


def _requests(peer: socket.socket) -> Iterator[dict[str, Any]]:
    received = b""
    while True:
        head, found, rest = received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if found and length and len(rest) >= int(length[1]):
            received = rest[int(length[1]) :]
            yield json.loads(rest[: int(length[1])])
            continue
        data = peer.recv(65536)
        if not data:
            return
        received += data


@contextmanager
def bad_server() -> Iterator[BadServer]:
    """A running BadServer."""
    server = BadServer()
    try:
        yield server
    finally:
        server.close()
