"""Reads a truth_server log and says what really happened. Knows nothing of who was served.

All times in ms.  Definitions:
  ttft       first content chunk sent - last request byte read (a role-only chunk is not content)
  gap        time between consecutive content chunks of a request
  itl        gap / tokens of the later chunk, counted once per token (SGLang's client on /generate)
  tpot       (last content chunk - first) / (tokens - 1), one value per request
  e2e        last content chunk - request read;  e2e_done: [DONE] - request read
  itl0       gap of a chunk once, then 0 for its other tokens (inference-perf)
  tpot_e2e   e2e / tokens (what guidellm calls TPOT)
  throughput tokens / (last content chunk - first request read), tokens/s
  slots      mean number of requests in flight, as a share of the asked concurrency, from the moment
             the server has seen C requests to the moment the last request came in
  lag        actual - scheduled send time of a chunk: how late the server itself was
"""

import struct
from collections import namedtuple
from pathlib import Path

REQUEST, CHUNK, ROLE, DONE, ABORT, ACCEPT, BLOCKED, CONFIG = range(1, 9)
REC = struct.Struct("<HHIqqIIII")
Rec = namedtuple("Rec", "type api req t due a b c d")
QS = (50, 90, 99)


class Request:
    """One request as the server served it; times in ns."""

    __slots__ = ("req", "api", "read", "olen", "serial", "chunks", "role", "done", "aborted")

    def __init__(self, r):
        self.req, self.api, self.read, self.olen, self.serial = r.req, r.api, r.t, r.a, r.d
        self.chunks, self.role, self.done, self.aborted = [], None, None, False


def load(path):
    """(requests in arrival order, counters, lags in ms)"""
    reqs, n, lags = {}, {"accepts": 0, "blocked": 0, "aborts": 0}, []
    data = Path(path).read_bytes()
    for tup in REC.iter_unpack(data[: len(data) // REC.size * REC.size]):
        r = Rec(*tup)
        if r.type == REQUEST:
            reqs[r.req] = Request(r)
        elif r.type == CHUNK:
            reqs[r.req].chunks.append((r.t, r.a))
            lags.append((r.t - r.due) / 1e6)
        elif r.type == ROLE:
            reqs[r.req].role = r.t
        elif r.type == DONE:
            reqs[r.req].done = r.t
        elif r.type == ABORT:
            reqs[r.req].aborted = True
            n["aborts"] += 1
        elif r.type == ACCEPT:
            n["accepts"] += 1
        elif r.type == BLOCKED:
            n["blocked"] += 1
    return [reqs[k] for k in sorted(reqs)], n, lags


def quantile(xs, q):
    """linear interpolation, as numpy's default; xs sorted"""
    if not xs:
        return None
    i = (len(xs) - 1) * q / 100
    lo = int(i)
    hi = min(lo + 1, len(xs) - 1)
    return xs[lo] + (xs[hi] - xs[lo]) * (i - lo)


def spread(xs):
    """Quantiles, mean, maximum and count."""
    xs = sorted(xs)
    out = {f"p{q}": quantile(xs, q) for q in QS}
    out["mean"] = sum(xs) / len(xs) if xs else None
    out["max"] = xs[-1] if xs else None
    out["n"] = len(xs)
    return out


def summarise(path, last=None, concurrency=None):
    """Everything the log says of its last `last` finished requests, for the asked concurrency."""
    reqs, counts, lags = load(path)
    reqs = [r for r in reqs if r.done and r.chunks]
    if not reqs:
        raise SystemExit(f"{path}: no finished request")
    if last:
        reqs = reqs[-last:]
    ttft, role, gap, itl, tpot, e2e, e2e_done, tpot_e2e, itl0 = ([] for _ in range(9))
    tokens = chunks = 0
    for r in reqs:
        first, end = r.chunks[0][0], r.chunks[-1][0]
        n = sum(k for _, k in r.chunks)
        tokens += n
        chunks += len(r.chunks)
        ttft.append((first - r.read) / 1e6)
        if r.role:
            role.append((r.role - r.read) / 1e6)
        e2e.append((end - r.read) / 1e6)
        e2e_done.append((r.done - r.read) / 1e6)
        tpot_e2e.append(e2e[-1] / n)
        if n > 1:
            tpot.append((end - first) / 1e6 / (n - 1))
        for (t0, _), (t1, k) in zip(r.chunks, r.chunks[1:], strict=False):
            g = (t1 - t0) / 1e6
            gap.append(g)
            itl.extend([g / k] * k)
            itl0.extend([g] + [0.0] * (k - 1))
    t_first = min(r.read for r in reqs)
    t_last = max(r.chunks[-1][0] for r in reqs)
    wall = (t_last - t_first) / 1e9
    out = {
        "t_first": t_first / 1e9,
        "t_last": t_last / 1e9,
        "requests": len(reqs),
        "tokens": tokens,
        "chunks": chunks,
        "wall_s": wall,
        "throughput": tokens / wall,
        "chunk_rate": chunks / wall,
        **counts,
        "ttft": spread(ttft),
        "gap": spread(gap),
        "itl": spread(itl),
        "itl0": spread(itl0),
        "tpot": spread(tpot),
        "e2e": spread(e2e),
        "e2e_done": spread(e2e_done),
        "tpot_e2e": spread(tpot_e2e),
        "lag": spread(lags),
    }
    if role:
        out["role"] = spread(role)
    if concurrency and len(reqs) > concurrency:
        lo = sorted(r.read for r in reqs)[concurrency - 1]
        hi = max(r.read for r in reqs)
        busy = sum(max(0, min(r.done, hi) - max(r.read, lo)) for r in reqs)
        out["slots"] = busy / (hi - lo) / concurrency
        inside = sum(k for r in reqs for t, k in r.chunks if lo <= t <= hi)
        out["steady_chunk_rate"] = sum(1 for r in reqs for t, _ in r.chunks if lo <= t <= hi) / ((hi - lo) / 1e9)
        out["steady_throughput"] = inside / ((hi - lo) / 1e9)
        out["steady_s"] = (hi - lo) / 1e9
    return out
