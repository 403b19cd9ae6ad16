"""The client's watch over itself, its self-test and its one-shot call."""

import asyncio
import http.server
import json
import subprocess
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
import uvloop
from driving import client

from kit.client.echo import EchoLog
from kit.client.probe import Level, judged
from kit.client.timer import KernelTimer, LagProbe
from kit.client.watch import in_flight_share
from kit.measurements import RequestRecord, SelfTest


def test_a_blocked_loop_shows_as_lag_for_as_long_as_it_was_blocked() -> None:
    async def block() -> list[float]:
        probe = LagProbe(asyncio.get_running_loop())
        time.sleep(0.1)
        await asyncio.sleep(0.01)
        probe.close()
        return probe.lags_s

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        lags_s = runner.run(block())
    assert max(lags_s) > 0.1 - 2 * LagProbe.PERIOD_S
    assert sum(lag > 0.01 for lag in lags_s) >= 0.09 // LagProbe.PERIOD_S


def test_a_kernel_timer_fires_once_and_can_be_armed_anew() -> None:
    async def fire() -> list[int]:
        fired: list[int] = []
        timer = KernelTimer(asyncio.get_running_loop(), fired.append)
        for _ in range(2):
            timer.arm(time.monotonic() - 1)
            await asyncio.sleep(0.05)
        timer.close()
        return fired

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(fire()) == [1, 1]


def test_case_24_in_flight_share_is_of_the_steady_part() -> None:
    full = [(0.0, 2.0), (0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (2.0, 9.0)]
    assert in_flight_share(full, 2) == pytest.approx(1.0)
    late = [(0.0, 1.0), (0.0, 2.0), (1.5, 2.5), (2.0, 3.0)]
    assert in_flight_share(late, 2) == pytest.approx((1.0 + 2.0 + 0.5) / 2 / 2)


@pytest.mark.parametrize(("spans", "users"), [([(0.0, 1.0)], 1), ([(0.0, 1.0)] * 4, 0), ([(0.0, 1.0)] * 3, 2)])
def test_no_steady_part_is_no_share(spans: list[tuple[float, float]], users: int) -> None:
    assert in_flight_share(spans, users) is None


def test_the_selftest_holds_records_against_the_log() -> None:
    sent = [float(n) for n in range(1, 11)]
    log = {0: EchoLog("0", 0.5, sent)}
    chunks = [(at + 0.25, 1) for at in sent[:-1]] + [(sent[-1] + 0.75, 1)]
    level = judged(1.0, [RequestRecord(index=0, sent_s=0.25, chunks=chunks)], log)
    assert level.ttft_error_p99_s == pytest.approx(0.5)
    assert level.gap_error_p99_s == pytest.approx(0.5)
    assert level.chunks_per_s == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("level", "trusted"),
    [
        (Level(100, 99, 0.001, 0.0005), True),
        (Level(100, 90, 0.001, 0.0005), False),
        (Level(100, 99, 0.004, 0.0005), False),
        (Level(100, 99, 0.001, 0.0015), False),
    ],
)
def test_a_level_is_trusted_within_all_limits(level: Level, trusted: bool) -> None:
    assert level.trusted() is trusted


def test_case_22_the_client_is_tested_on_this_machine() -> None:
    done = subprocess.run(client("selftest"), capture_output=True, timeout=120, check=True)
    result = msgspec.json.decode(done.stdout, type=SelfTest)
    assert result.ttft_error_p99_s > 0
    assert result.gap_error_p99_s > 0
    assert done.stdout.count(b"\n") == 1


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(418)
        self.end_headers()
        self.wfile.write(self.path.encode() + b" " + body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def teapot() -> Iterator[int]:
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_one_call(teapot: int) -> None:
    command = client("call", "POST", "/flush_cache?timeout=1", "--port", str(teapot), "--timeout", "5")
    done = subprocess.run(command, input="grüße".encode(), capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {"status": 418, "body": "/flush_cache?timeout=1 grüße"}


def test_a_call_that_nobody_answers_has_status_0() -> None:
    done = subprocess.run(client("call", "GET", "/", "--port", "1"), input=b"", capture_output=True, timeout=60)
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["status"] == 0
    assert "refused" in result["body"]
