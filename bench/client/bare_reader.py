"""The least that a uvloop client can do: stamp every read and count frames. The mark that the kit's client is held to.

  python bare_reader.py PORT USERS REQUESTS OUTPUT_TOKENS      one JSON line: sent and read stamps of each request

Connections are opened before the first request. It parses nothing: a read that holds a frame is a chunk.
"""

import asyncio
import json
import socket
import sys
import time

import uvloop


class Reader(asyncio.Protocol):
    """One kept-alive connection, sending the next request when a reply has ended."""

    left = 0
    live = 0
    request = b""
    requests: list[tuple[float, list[float]]] = []
    over: asyncio.Event

    def connection_made(self, transport):
        """Waits for the common start."""
        self.transport = transport

    def send(self):
        """Sends one request, if any is left."""
        if not Reader.left:
            Reader.live -= 1
            if not Reader.live:
                Reader.over.set()
            return
        Reader.left -= 1
        self.stamps = []
        Reader.requests.append((time.monotonic(), self.stamps))
        self.transport.write(Reader.request)

    def data_received(self, data):
        """Stamps; the reply's head carries no frame, and [DONE] comes with the last one."""
        at = time.monotonic()
        if b"data: {" in data[:32] or (not self.stamps and b"data: {" in data):
            self.stamps.append(at)
        if data.endswith(b"0\r\n\r\n"):
            self.send()


async def main(port, users, requests, tokens):
    """Drives all requests and prints the stamps."""
    content = b'{"text":"a b c","stream":true,"sampling_params":{"max_new_tokens":%d}}' % tokens
    Reader.request = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)
    Reader.left, Reader.live, Reader.over = requests, users, asyncio.Event()
    loop = asyncio.get_running_loop()
    readers = []
    for _ in range(users):
        sock = socket.create_connection(("127.0.0.1", port))
        readers.append((await loop.create_connection(Reader, sock=sock))[1])
    for reader in readers:
        reader.send()
    await Reader.over.wait()
    json.dump(Reader.requests, sys.stdout)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(*map(int, sys.argv[1:5])))
