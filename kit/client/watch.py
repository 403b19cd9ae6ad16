"""What the client sees of itself while it drives: loop lag, requests in flight, CPU. Knows nothing of limits.

Lag is the lateness of a kernel timer read by the same loop (see `timer`): the time from the kernel having something
ready to this loop reading it, sampled evenly in time.
"""

import asyncio
import os
import time

from kit.client.connection import Exchange
from kit.client.timer import LagProbe
from kit.measurements import ClientWatch


class Watch:
    """Watches one drive. `concurrency` 0 has no cap, and no share of it in flight."""

    def __init__(self, loop: asyncio.AbstractEventLoop, concurrency: int) -> None:
        self._loop = loop
        self._concurrency = concurrency
        self._spans: list[tuple[float, float]] = []
        self._chunks = 0
        self._probe: LagProbe | None = None
        self._started_s = self._cpu_s = 0.0

    def start(self) -> None:
        """Begins at the trial's zero."""
        self._started_s, self._cpu_s = time.monotonic(), time.process_time()
        self._probe = LagProbe(self._loop)

    def count(self, exchange: Exchange) -> None:
        """Takes an exchange that is over."""
        self._chunks += len(exchange.stream.chunks) + len(exchange.stream.uncounted)
        if exchange.sent_at is not None:
            self._spans.append((exchange.sent_at, exchange.done_at or max(exchange.heard_at, exchange.sent_at)))

    def end(self) -> ClientWatch:
        """Stops watching and says what was seen."""
        assert self._probe is not None
        self._probe.close()
        lags_s = sorted(self._probe.lags_s)
        wall_s = time.monotonic() - self._started_s
        return ClientWatch(
            lag_p50_s=_quantile(lags_s, 0.5),
            lag_p99_s=_quantile(lags_s, 0.99),
            lag_max_s=_quantile(lags_s, 1.0),
            in_flight_share=in_flight_share(self._spans, self._concurrency),
            cpu_share=(time.process_time() - self._cpu_s) / wall_s if wall_s > 0 else None,
            chunks=self._chunks,
            cores=sorted(os.sched_getaffinity(0)),
        )


def in_flight_share(spans: list[tuple[float, float]], concurrency: int) -> float | None:
    """Mean requests in flight over the asked concurrency, in the steady part of `spans` (sent, done) in seconds.

    The steady part runs from the moment `concurrency` requests were sent to the moment the last one was sent; None
    when no more requests than that were asked for, since there is no steady part then.
    """
    if not concurrency or len(spans) <= concurrency:
        return None
    sent = sorted(start for start, _ in spans)
    begin, end = sent[concurrency - 1], sent[-1]
    if end <= begin:
        return None
    busy_s = sum(max(0.0, min(done, end) - max(start, begin)) for start, done in spans)
    return busy_s / (end - begin) / concurrency


def _quantile(ordered: list[float], share: float) -> float | None:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None
