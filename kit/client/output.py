"""Writes the client's lines to its standard output from a thread of its own, so that a slow reader never stops a clock.

Knows nothing of what the lines say. Encoding happens on the loop, between reads; only the write may block, and a
blocked write holds no interpreter lock.
"""

import os
import queue
import select
import threading


class LineWriter:
    """Lines in, in order, without ever waiting; `broken` is set when nobody reads any more.

    `flush` hands over all lines since the last one: the thread is woken a few times a second, not for every line,
    since each time it runs it takes the interpreter from the loop for a moment.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: list[bytes] = []
        self._batches: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._drain, name="lines", daemon=True)
        self._poll = select.poll()
        self._poll.register(fd, 0)
        self.broken = False
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Takes one line (its line feed is added)."""
        self._waiting.append(line)

    def flush(self) -> None:
        """Gives what was taken to the thread."""
        if self._waiting:
            self._batches.put(self._waiting)
            self._waiting = []

    def reader_gone(self) -> bool:
        """Whether the other end of the pipe is closed; asks the kernel, writes nothing."""
        events = self._poll.poll(0)
        self.broken |= any(event & (select.POLLERR | select.POLLNVAL) for _, event in events)
        return self.broken

    def close(self) -> None:
        """Waits until every line is written, or the reader is gone."""
        self.flush()
        self._batches.put(None)
        self._thread.join()

    def _drain(self) -> None:
        while (lines := self._batches.get()) is not None:
            self._write_all(memoryview(b"\n".join([*lines, b""])))

    def _write_all(self, data: memoryview) -> None:
        while data and not self.broken:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # whoever made the pipe set it so
                select.select([], [self._fd], [])
            except OSError:  # a closed pipe; the loop sees `broken` and ends the drive
                self.broken = True
