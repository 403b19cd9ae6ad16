"""Drives one job: keeps the asked load in flight, gives requests up by the rules, ends. Knows nothing of bytes.

A turn of the loop first stamps all that the kernel has ready, then sends what is due (a few requests a turn, so that a
burst of sends does not hold up reads), then makes one record of one finished request.
"""

import asyncio
import gc
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from kit.client.chat import ChatStream
from kit.client.connection import Address, Backlog, Connection, Exchange, connect, resolve
from kit.client.generate import GenerateStream
from kit.client.job import DriveJob
from kit.client.output import LineWriter
from kit.client.prepare import arrivals, prepare
from kit.client.record import request_record
from kit.client.stream import EventStream
from kit.client.timer import KernelTimer
from kit.client.watch import Watch
from kit.measurements import ClientLine, DriveEnd

STREAMS: dict[str, type[EventStream]] = {"generate": GenerateStream, "openai-chat": ChatStream}
CONNECT_TIMEOUT_S = 10.0
SENDS_PER_TURN = 8
IDLE_REUSE_S = 2.0  # SGLang's server closes a connection after 5 idle seconds; a request must not meet that
OPEN_LOOP_CONNECTIONS = 256
DONE_GRACE_S = 1.0


async def drive(job: DriveJob, writer: LineWriter, stopped: Callable[[], str | None]) -> None:
    """Writes one line for each request as it ends, then one DriveEnd. `stopped` says why to give up, or None.

    Raises UnusableInput for a job or workload that cannot be used, before anything is sent.
    """
    addresses = await resolve(job.host, job.port)
    await _Drive(job, addresses, prepare(job), writer, stopped).run()


class _Drive:
    def __init__(
        self,
        job: DriveJob,
        addresses: list[Address],
        payloads: list[bytes],
        writer: LineWriter,
        stopped: Callable[[], str | None],
    ) -> None:
        self._job = job
        self._addresses = addresses
        self._payloads = payloads
        self._writer = writer
        self._stopped = stopped
        self._stream = STREAMS[job.dialect]
        self._encode = msgspec.json.Encoder().encode
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._broken)
        self._fault: BaseException | None = None
        self._over = asyncio.Event()
        self._backlog = Backlog()
        self._idle: list[Connection] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._live: dict[Connection, Exchange] = {}
        self._due_at = [] if job.rate_per_s is None else arrivals(job)
        self._cap = job.concurrency or job.requests
        self._next = 0
        self._in_flight = 0
        self._finished: deque[Exchange] = deque()
        self._recorded = 0
        self._turn_asked = False
        self._aborted: str | None = None
        self._zero_s = 0.0
        self._arrival = KernelTimer(self._loop, lambda _: self._ask_turn())
        self._watch = Watch(self._loop, job.concurrency)

    async def run(self) -> None:
        await self._open_connections()
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing here makes cycles that grow; a collection would be a stall in the data
        try:
            await self._run()
        finally:
            gc.enable()
            gc.unfreeze()

    async def _run(self) -> None:
        self._zero_s, zero_unix_s = time.monotonic(), time.time()
        self._watch.start()
        self._ask_turn()
        async with asyncio.TaskGroup() as group:
            sweep = group.create_task(self._sweep())
            await self._over.wait()
            sweep.cancel()
        if self._fault is not None:
            raise self._fault
        watch = self._watch.end()
        self._arrival.close()
        for connection in self._idle:
            connection.close()
        self._line(DriveEnd(zero_monotonic_s=self._zero_s, zero_unix_s=zero_unix_s, watch=watch, aborted=self._aborted))

    def _broken(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception in a callback is a fault of this program: end with it rather than wait for what never comes.

        An OSError is the network's; the connection it belongs to hears of it and fails its request.
        """
        fault = context.get("exception")
        if fault is not None and not isinstance(fault, OSError):
            self._fault = fault
            self._over.set()

    async def _open_connections(self) -> None:
        job = self._job
        wanted = min(self._cap, job.requests, OPEN_LOOP_CONNECTIONS if not job.concurrency else self._cap)
        results = await asyncio.gather(*(self._connect() for _ in range(wanted)), return_exceptions=True)
        for result in results:
            if isinstance(result, Connection):
                self._idle.append(result)
            elif not isinstance(result, OSError):  # TimeoutError is one; whoever needs a connection meets it again
                raise result

    async def _connect(self) -> Connection:
        return await connect(self._addresses, CONNECT_TIMEOUT_S, self._backlog, self._ended)

    # ---- one turn

    def _ask_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_asked = False
        sends = 0
        while sends < SENDS_PER_TURN and self._may_send():
            self._send_next()
            sends += 1
        if self._finished:
            self._record(self._finished.popleft())
        if self._recorded == self._job.requests or (self._aborted and not self._in_flight and not self._finished):
            self._over.set()
        elif self._finished or sends == SENDS_PER_TURN:
            self._ask_turn()

    def _may_send(self) -> bool:
        if self._next == self._job.requests or self._in_flight >= self._cap or self._aborted:
            return False
        if not self._due_at:
            return True
        due_at = self._zero_s + self._due_at[self._next]
        if due_at <= time.monotonic():
            return True
        self._arrival.arm(due_at)
        return False

    def _send_next(self) -> None:
        index = self._next
        self._next += 1
        self._in_flight += 1
        scheduled_at = self._zero_s + self._due_at[index] if self._due_at else None
        exchange = Exchange(index, self._payloads[index], self._stream(), scheduled_at)
        connection = self._idle_connection()
        if connection is not None:
            self._send(connection, exchange)
            return
        task = self._loop.create_task(self._connect_and_send(exchange))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _idle_connection(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            fresh = connection.idle_since == 0.0 or time.monotonic() - connection.idle_since < IDLE_REUSE_S
            if connection.reusable and fresh:
                return connection
            connection.close()
        return None

    def _send(self, connection: Connection, exchange: Exchange) -> None:
        self._live[connection] = exchange
        connection.send(exchange)

    async def _connect_and_send(self, exchange: Exchange) -> None:
        try:
            connection = await self._connect()
        except OSError as error:
            exchange.fail("connect", str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s")
            return self._close_exchange(exchange)
        except asyncio.CancelledError:
            exchange.fail("aborted", self._aborted or "")
            return self._close_exchange(exchange)
        return self._send(connection, exchange)

    # ---- ends of exchanges

    def _ended(self, connection: Connection, exchange: Exchange) -> None:
        """Called within the read that ended an exchange: nothing here may take long."""
        self._live.pop(connection, None)
        if connection.reusable:
            self._idle.append(connection)
        self._close_exchange(exchange)

    def _close_exchange(self, exchange: Exchange) -> None:
        self._in_flight -= 1
        self._finished.append(exchange)
        self._ask_turn()

    def _record(self, exchange: Exchange) -> None:
        self._line(request_record(exchange, self._zero_s, self._job.phase == "warmup"))
        self._watch.count(exchange)
        self._recorded += 1

    def _line(self, line: ClientLine) -> None:
        self._writer.write(self._encode(line))

    # ---- the rules

    async def _sweep(self) -> None:
        job = self._job
        period_s = min(max(min(job.request_timeout_s, job.silence_timeout_s) / 20, 0.02), 0.25)
        parent = os.getppid()
        while True:
            await asyncio.sleep(period_s)
            self._backlog.clear()
            reason = self._stopped() or (None if os.getppid() == parent else "the parent process went away")
            if reason:
                self._abort(reason)
            self._give_up_late(time.monotonic())
            self._writer.flush()

    def _give_up_late(self, now: float) -> None:
        for connection, exchange in list(self._live.items()):
            sent_at = exchange.sent_at or now
            if exchange.stream.done_at is not None:
                if now - exchange.stream.done_at > DONE_GRACE_S:
                    connection.settle()
            elif now - sent_at > self._job.request_timeout_s:
                connection.give_up("timeout", f"not done after {self._job.request_timeout_s:g} s")
            elif now - exchange.heard_at > self._job.silence_timeout_s:
                connection.give_up("silence", f"nothing came for {self._job.silence_timeout_s:g} s")

    def _abort(self, reason: str) -> None:
        self._aborted = reason
        for task in list(self._connecting):
            task.cancel()
        for connection in list(self._live):
            connection.give_up("aborted", reason)
        self._ask_turn()
