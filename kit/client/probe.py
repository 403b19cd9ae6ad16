"""The client's self-test on this machine: the same program that drives trials, against an echo of known schedule.

Client and echo are processes of their own, on cores apart where the machine has two. Knows nothing of SGLang.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from kit import children
from kit.client.echo import EchoLog
from kit.client.job import DriveJob, WorkloadLine
from kit.errors import RunFailed
from kit.measurements import ClientLine, RequestRecord, SelfTest

RATES_PER_S = (5_000, 10_000, 20_000, 40_000)
CONNECTIONS = 64
REQUESTS = 3 * CONNECTIONS
LEVEL_S = 0.75
TTFT_LIMIT_S = 0.003
GAP_LIMIT_S = 0.001
TRIES = 2  # one disturbance of the machine must not pass for the client's limit
RATE_SHARE = 0.95


class Level(msgspec.Struct, frozen=True):
    """One rate of the test: what was asked for, what came through, and P99 of the absolute errors in seconds."""

    asked_per_s: float
    chunks_per_s: float
    ttft_error_p99_s: float
    gap_error_p99_s: float

    def trusted(self) -> bool:
        """Whether client and echo kept up and the clock stayed within the limits."""
        kept_up = self.chunks_per_s >= RATE_SHARE * self.asked_per_s
        return kept_up and self.ttft_error_p99_s <= TTFT_LIMIT_S and self.gap_error_p99_s <= GAP_LIMIT_S


def selftest(cores: list[int] | None = None) -> SelfTest:
    """Raises the rate until the client's errors pass their limits; reports the last rate below that.

    `cores` are the client's; the echo takes another one when there is one. The echo itself ends the ascent on slow
    machines, so the trusted rate is a lower bound. 0 chunks/s: even the lowest rate was not timed within the limits.
    """
    client_cores, echo_core = _cores(cores or [])
    best: Level | None = None
    for rate in RATES_PER_S:
        level = _best_of_tries(rate, client_cores, echo_core)
        if not level.trusted():
            best = best or msgspec.structs.replace(level, chunks_per_s=0.0)
            break
        best = level
    assert best is not None
    return SelfTest(
        ttft_error_p99_s=best.ttft_error_p99_s,
        gap_error_p99_s=best.gap_error_p99_s,
        trusted_chunks_per_s=best.chunks_per_s,
    )


def _best_of_tries(rate: float, client_cores: list[int], echo_core: int) -> Level:
    for _ in range(TRIES):
        level = run_level(rate, client_cores, echo_core)
        if level.trusted():
            break
    return level


def run_level(rate_per_s: float, client_cores: list[int], echo_core: int) -> Level:
    """Drives the echo at one chunk rate and holds the client's records against the echo's log."""
    step_s = CONNECTIONS / rate_per_s
    with tempfile.TemporaryDirectory() as folder, _echo(step_s, echo_core) as echo:
        assert echo.stdout is not None
        workload = Path(folder) / "workload.jsonl"
        job = DriveJob(
            host="127.0.0.1",
            port=int(echo.stdout.readline()),
            workload=str(workload),
            requests=REQUESTS,
            concurrency=CONNECTIONS,
            cores=client_cores,
        )
        workload.write_bytes(_workload(max(int(LEVEL_S * rate_per_s / REQUESTS), 2)))
        records = _driven(job)
        log = msgspec.json.decode(echo.communicate()[0], type=list[EchoLog])
    return judged(rate_per_s, records, {int(entry.prompt): entry for entry in log})


def _workload(tokens: int) -> bytes:
    lines = [WorkloadLine(index=n, output_len=tokens, text=str(n)) for n in range(REQUESTS)]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


def _echo(step_s: float, core: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "kit.client.echo", str(step_s), str(core)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=children.environment())


def _driven(job: DriveJob) -> list[RequestRecord]:
    command = [sys.executable, "-m", "kit.client", "drive"]
    done = subprocess.run(command, input=msgspec.json.encode(job), capture_output=True, env=children.environment())
    if done.returncode:
        raise RunFailed(f"client self-test: {done.stderr.decode(errors='replace').strip().splitlines()[-1:]}")
    lines = [msgspec.json.decode(line, type=ClientLine) for line in done.stdout.splitlines()]
    records = [line for line in lines if isinstance(line, RequestRecord)]
    failed = next((record.error for record in records if record.error), None)
    if failed:
        raise RunFailed(f"client self-test: a request to the echo failed: {failed.kind}: {failed.detail}")
    return records


def judged(rate_per_s: float, records: list[RequestRecord], log: dict[int, EchoLog]) -> Level:
    """Holds the client's records against the echo's log, by request."""
    ttft_errors_s, gap_errors_s = [], []
    for record in records:
        truth = log[record.index].sent_s
        seen = [at for at, _ in record.chunks]
        assert record.sent_s is not None
        ttft_errors_s.append(abs(seen[0] - record.sent_s - (truth[0] - log[record.index].received_s)))
        gap_errors_s += [abs((seen[n] - seen[n - 1]) - (truth[n] - truth[n - 1])) for n in range(1, len(truth))]
    sent = sorted(at for entry in log.values() for at in entry.sent_s)
    inner = sent[len(sent) // 5 : -len(sent) // 5]  # the ramps at both ends are not the rate
    return Level(rate_per_s, (len(inner) - 1) / (inner[-1] - inner[0]), _p99(ttft_errors_s), _p99(gap_errors_s))


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def _cores(asked: list[int]) -> tuple[list[int], int]:
    available = sorted(os.sched_getaffinity(0))
    client = asked or available[-1:]
    others = [core for core in available if core not in client]
    return client, (others or client)[0]
