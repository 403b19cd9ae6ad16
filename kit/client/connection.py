"""One HTTP/1.1 connection: writes a request, stamps every read, parses later. Knows nothing of the load.

The socket is the connection's own beside the transport that reads it: uvloop holds writes back to the end of a loop
turn, so a request is sent on the socket itself, right after its stamp.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, cast

import httptools

from kit.client.stream import EventStream, StreamBroken
from kit.errors import UnusableInput

ERROR_BODY_BYTES = 4096
READS_TOGETHER = 32
SMALL_READ_BYTES = 4096
_FRAME_AND_CHUNK_END = b"}\n\n\r\n"
_monotonic = time.monotonic


class Exchange:
    """One request on the wire and what came back. Times are CLOCK_MONOTONIC seconds; None is not reached."""

    __slots__ = (
        "body", "done_at", "error_detail", "error_kind", "heard_at", "index", "payload", "scheduled_at", "sent_at",
        "status", "stream",
    )  # fmt: skip

    def __init__(self, index: int, payload: bytes, stream: EventStream, scheduled_at: float | None = None) -> None:
        self.index = index
        self.payload = payload
        self.stream = stream
        self.scheduled_at = scheduled_at
        self.sent_at: float | None = None
        self.heard_at = 0.0
        self.done_at: float | None = None
        self.status: int | None = None
        self.body = b""
        self.error_kind: str | None = None
        self.error_detail = ""

    def fail(self, kind: str, detail: str) -> None:
        """Keeps the first reason; what follows from it is not the cause."""
        if self.error_kind is None:
            self.error_kind, self.error_detail = kind, detail


class Connection(asyncio.Protocol):
    """A kept-alive connection for one exchange at a time; reports its end to `ended`, within the read itself."""

    def __init__(self, sock: socket.socket, backlog: "Backlog", ended: "Ended") -> None:
        self._sock = sock
        self._backlog = backlog
        self._ended = ended
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser: Any = None
        self._at = 0.0
        self._headers: dict[bytes, bytes] = {}
        self._complete = False
        self.reusable = True
        self.idle_since = 0.0

    def send(self, exchange: Exchange) -> None:
        """Stamps and writes the request. A failure is reported like any other, never raised."""
        self._exchange = exchange
        payload = exchange.payload
        exchange.sent_at = exchange.heard_at = _monotonic()
        try:
            written = self._sock.send(payload)
        except BlockingIOError:
            written = 0
        except OSError as error:
            return self.give_up("reset", f"while the request was written: {error.strerror}")
        if written < len(payload) and self._transport is not None:
            self._transport.write(payload[written:])  # a long prompt: the rest goes as the socket takes it
        return None

    def give_up(self, kind: str, detail: str) -> None:
        """Ends the exchange with a reason and closes the connection."""
        exchange = self._exchange
        self.close()
        if exchange is not None:
            exchange.fail(kind, detail)
            self._end(exchange)

    def settle(self) -> None:
        """Ends an exchange whose [DONE] has come although the server never closes its reply."""
        exchange = self._exchange
        self.close()
        if exchange is not None:
            exchange.done_at = exchange.stream.done_at
            self._end(exchange)

    def close(self) -> None:
        """Closes at once; an exchange in progress is not reported."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # ---- what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Takes the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class, of the same shape
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        """Stamps the read; parses it with the next ones while it can only be the middle of a stream."""
        reads = self._backlog.reads
        reads.append((self, _monotonic(), data))
        if len(reads) >= READS_TOGETHER or len(data) > SMALL_READ_BYTES or not data.endswith(_FRAME_AND_CHUNK_END):
            self._backlog.clear()

    def eof_received(self) -> bool:
        """Closes the transport; `connection_lost` judges what was in progress."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Fails the exchange in progress, unless its reply ends so."""
        self.reusable = False
        self._transport = None
        self._backlog.clear()
        self._parser = None  # it holds this object: no cycle is left to collect
        exchange = self._exchange
        if exchange is None:
            return
        if error is None and self._ends_with_connection(exchange):
            exchange.done_at = exchange.stream.done_at or exchange.heard_at
        else:
            when = "before any answer" if exchange.status is None else "in mid-stream"
            exchange.fail("closed" if error is None else "reset", f"the server ended the connection {when}")
        self._end(exchange)

    # ---- what the HTTP parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """Refuses what cannot be timed."""
        status = self._parser.get_status_code()
        if status < 200 or self._exchange is None:
            return
        self._exchange.status = status
        encoding = self._headers.get(b"content-encoding", b"identity").lower()
        if status == 200 and encoding != b"identity":
            raise StreamBroken("encoding", f"content-encoding {encoding.decode()}: a compressed stream cannot be timed")

    def on_body(self, body: bytes) -> None:
        """Feeds the stream, or keeps the words of a refusal."""
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.status == 200:
            exchange.stream.feed(body, self._at)
        elif len(exchange.body) < ERROR_BODY_BYTES:
            exchange.body += body

    def on_message_complete(self) -> None:
        """Marks the end; the read that brought it reports it."""
        if self._parser.get_status_code() >= 200:
            self._complete = True
            self.reusable &= self._parser.should_keep_alive()

    # ---- parsing

    def parse(self, at: float, data: bytes) -> None:
        """Parses one read with its stamp."""
        exchange = self._exchange
        if exchange is None:
            return self.close()  # an answer that nobody asked for
        self._at = exchange.heard_at = at
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            broken = error.__context__
            if not isinstance(broken, StreamBroken):
                raise
            self.give_up(broken.kind, str(broken))
        except httptools.HttpParserError as error:
            self.give_up("bad_http", f"{error}: {data[:80]!r}")
        if self._complete:
            self._complete = False
            self._finish(exchange)
        return None

    # ---- ends

    def _finish(self, exchange: Exchange) -> None:
        exchange.done_at = exchange.stream.done_at or self._at
        if exchange.status != 200:
            detail = " ".join(exchange.body.decode(errors="replace").split())[:500]
            exchange.fail("http_status", detail or "no body")
        self._end(exchange)
        if not self.reusable:
            self.close()

    def _end(self, exchange: Exchange) -> None:
        self._exchange = None
        self._headers.clear()
        self.idle_since = _monotonic()
        self._ended(self, exchange)

    def _ends_with_connection(self, exchange: Exchange) -> bool:
        """A reply without length or chunks ends with its connection; so does one whose [DONE] has come."""
        if exchange.stream.done_at is not None:
            return True
        framed = b"content-length" in self._headers or b"transfer-encoding" in self._headers
        return exchange.status is not None and not framed


class Backlog:
    """Reads of all connections that are stamped and not parsed yet; parsed in the order they came.

    A read that ends a frame and its HTTP chunk at once is the middle of a stream: the last read of a reply ends with
    an empty chunk. Nothing but its stamp is asked of such a read before the stream's end, so these wait for each other:
    parsing a few dozen together in warm caches costs less than half of parsing each after a sleep.
    """

    def __init__(self) -> None:
        self.reads: list[tuple[Connection, float, bytes]] = []

    def clear(self) -> None:
        """Parses all that wait. A drive asks for it before it judges a silent exchange."""
        reads, self.reads = self.reads, []
        for connection, at, data in reads:
            connection.parse(at, data)


Ended: TypeAlias = Callable[[Connection, Exchange], None]
Address: TypeAlias = tuple[Any, ...]


async def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a host, in the order to try. Raises UnusableInput when the name is not known."""
    try:
        return await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise UnusableInput(f"host {host}: {error.strerror}; give the server's name or address") from None


async def connect(addresses: list[Address], timeout_s: float, backlog: Backlog, ended: Ended) -> Connection:
    """An open connection to the first address that takes it. Raises OSError (TimeoutError is one)."""
    async with asyncio.timeout(timeout_s):
        for address in addresses[:-1]:
            with suppress(OSError):
                return await _connect(address, backlog, ended)
        return await _connect(addresses[-1], backlog, ended)


async def _connect(address: Address, backlog: Backlog, ended: Ended) -> Connection:
    loop = asyncio.get_running_loop()
    sock = socket.socket(*address[:3])
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, address[4])
        _, connection = await loop.create_connection(lambda: Connection(sock, backlog, ended), sock=sock)
    except BaseException:
        sock.close()
        raise
    return connection
