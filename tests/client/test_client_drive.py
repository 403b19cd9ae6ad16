"""What the client sends, when, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bad_server import DONE, BadServer, bad_server, chunked, frame
from driving import Drive, client, drive_all, job_for

from kit.client.job import DriveJob
from kit.client.prepare import arrivals
from kit.measurements import ClientLine, DriveEnd, RequestRecord

Driven = tuple[dict[str, RequestRecord], DriveEnd]
SMALLEST_PIPE = 4096


def increment(total: int, ids: list[int], text: str, finish: str | None = None) -> bytes:
    body = json.loads(frame(total, text, finish)[6:])
    return b"data: " + json.dumps({**body, "output_ids": ids}).encode() + b"\n\n"


REPLIES = {
    "whole": [frame(1, "a"), frame(3, "ab"), frame(4, "abc", "length"), DONE],
    "parts": [increment(1, [0], "a"), increment(3, [1, 2], "b"), increment(4, [3], "c", "length"), DONE],
    "late": [frame(1, ""), frame(2, ""), frame(3, "x", "length"), DONE],
}


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Driven:
    """A good answer and each of the replies, one after the other, on one core, as a warm-up."""
    with bad_server() as server:
        server.replies = {name: chunked(frames) for name, frames in REPLIES.items()}
        prompts = ["good", *REPLIES]
        cores = [min(os.sched_getaffinity(0))]
        records, end = drive_all(server, tmp_path_factory.mktemp("warmed"), prompts, phase="warmup", cores=cores)
    assert [record.error for record in records] == [None] * len(prompts)
    return dict(zip(prompts, records, strict=True)), end


@pytest.fixture(scope="module")
def three_users(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RequestRecord], DriveEnd, int]:
    """Twelve requests, three at a time; how many connections that took comes last."""
    with bad_server() as server:
        records, end = drive_all(server, tmp_path_factory.mktemp("users"), ["slow"] * 12, concurrency=3)
        return records, end, server.connections


def test_a_record_holds_what_the_server_said(warmed: Driven) -> None:
    record, end = warmed[0]["good"], warmed[1]
    assert record.warmup
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (7, 6, 0)
    assert (record.retractions, record.reasoning_tokens, record.finish_reason) == (0, 0, "length")
    assert record.spec is not None
    assert (record.spec.verify_steps, record.spec.correct_drafts) == (3, None)
    assert record.server_e2e_s == 0.5
    assert sum(tokens for _, tokens in record.chunks) == record.completion_tokens
    assert record.scheduled_s is None
    assert record.sent_s is not None
    assert record.first_text_s == record.chunks[0][0]
    assert 0 <= record.sent_s < record.chunks[0][0] <= record.chunks[-1][0] == record.done_s
    assert end.watch.chunks == sum(len(record.chunks) for record in warmed[0].values())
    assert abs(end.zero_monotonic_s + record.sent_s - time.monotonic()) < 60


def test_case_41_temperature_is_always_sent(drive: Drive, server: BadServer) -> None:
    drive(["good"], sampling={"top_p": 0.9}, output_len=3)
    assert server.seen == [
        {
            "text": "good",
            "sampling_params": {"temperature": 0.0, "top_p": 0.9, "ignore_eos": True, "max_new_tokens": 3},
            "stream": True,
        }
    ]


def test_requests_go_in_order_over_kept_connections(three_users: tuple[list[RequestRecord], DriveEnd, int]) -> None:
    records, end, connections = three_users
    assert connections == 3
    assert [record.index for record in records] == list(range(12))
    assert sorted(records, key=lambda record: record.sent_s or 0) == records
    assert end.watch.in_flight_share is not None
    assert end.watch.lag_p99_s is not None


def test_no_more_than_asked_are_in_flight(three_users: tuple[list[RequestRecord], DriveEnd, int]) -> None:
    records = three_users[0]
    for record in records:
        assert record.sent_s is not None
        at = record.sent_s
        assert sum((other.sent_s or 0) <= at < (other.done_s or 0) for other in records) <= 3


def test_open_loop_keeps_scheduled_and_sent_apart(drive: Drive) -> None:
    records, end = drive(["slow"] * 20, concurrency=0, rate_per_s=100.0, seed=5)
    job = DriveJob(host="", port=0, workload="", requests=20, concurrency=0, rate_per_s=100.0, seed=5)
    assert [record.scheduled_s for record in records] == pytest.approx(arrivals(job), abs=1e-6)
    assert all((record.sent_s or 0) >= (record.scheduled_s or 0) for record in records)
    assert end.watch.in_flight_share is None


def test_case_20_waiting_for_a_slot_shows_in_the_send_time(drive: Drive) -> None:
    records, _ = drive(["slow"] * 5, concurrency=1, rate_per_s=10_000.0)
    waits = [(record.sent_s or 0) - (record.scheduled_s or 0) for record in records]
    assert waits == sorted(waits)
    assert waits[-1] > 4 * 0.05 - 0.01


def test_arrivals_are_seeded() -> None:
    def of(seed: int) -> list[float]:
        job = {"host": "", "port": 0, "workload": "", "requests": 2000, "concurrency": 0, "rate_per_s": 4.0}
        return arrivals(DriveJob(**job, seed=seed))  # type: ignore[arg-type]

    assert of(1) == of(1) != of(2)
    assert of(1)[-1] == pytest.approx(2000 / 4.0, rel=0.1)


def test_incremental_streams_give_the_same_record(warmed: Driven) -> None:
    whole, parts = warmed[0]["whole"], warmed[0]["parts"]
    assert [tokens for _, tokens in whole.chunks] == [tokens for _, tokens in parts.chunks] == [1, 2, 1]
    assert whole.output_sha256 == parts.output_sha256


def test_first_text_may_come_after_the_first_token(warmed: Driven) -> None:
    record = warmed[0]["late"]
    assert [tokens for _, tokens in record.chunks] == [1, 1, 1]
    assert record.first_text_s == record.chunks[2][0]


def test_it_pins_itself(warmed: Driven) -> None:
    assert warmed[1].watch.cores == [min(os.sched_getaffinity(0))]


# ---- how it ends


def test_a_slow_reader_stops_no_request(server: BadServer, tmp_path: Path) -> None:
    prompts = ["good"] * 200 + ["slow"] * 80  # the slow ones are sent after records were first written
    job = job_for(server.port, tmp_path, prompts, concurrency=8)
    with subprocess.Popen(
        client("drive"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, pipesize=SMALLEST_PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(job)
        process.stdin.close()
        while len(server.seen) < len(prompts):  # nothing is read yet, and the pipe holds a tenth of the records
            time.sleep(0.05)
        lines = process.stdout.read().splitlines()
    assert len(lines) == len(prompts) + 1
    assert process.returncode == 0


def _started(job: bytes, **pipes: Any) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(client("drive"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **pipes)
    assert process.stdin is not None
    process.stdin.write(job)
    process.stdin.close()
    return process


def _wait_for_request(server: BadServer) -> None:
    while not server.seen:
        time.sleep(0.02)


def test_sigterm_records_what_was_in_flight(server: BadServer, tmp_path: Path) -> None:
    process = _started(job_for(server.port, tmp_path, ["no_answer"] * 3))
    _wait_for_request(server)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    lines = [msgspec.json.decode(line, type=ClientLine) for line in process.stdout.read().splitlines()]
    process.stdout.close()
    assert process.wait() == 0
    assert len(lines) == 2
    assert isinstance(lines[-1], DriveEnd)
    assert lines[-1].aborted == "ended by SIGTERM"


def test_it_ends_when_nobody_reads(server: BadServer, tmp_path: Path) -> None:
    process = _started(job_for(server.port, tmp_path, ["no_answer"]))
    _wait_for_request(server)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) == 0


def test_it_ends_with_its_parent(server: BadServer, tmp_path: Path) -> None:
    output, job = tmp_path / "lines.jsonl", tmp_path / "job.json"
    job.write_bytes(job_for(server.port, tmp_path, ["no_answer"]))
    start = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({client('drive')!r}, stdin=open({str(job)!r}), stdout=open({str(output)!r}, 'w'))\n"
        "print(p.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        _wait_for_request(server)
        parent.kill()
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.05)
    end = msgspec.json.decode(output.read_bytes().splitlines()[-1], type=ClientLine)
    assert isinstance(end, DriveEnd)
    assert end.aborted == "the parent process went away"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"requests": 9}, "workload.jsonl: 1 requests, the job asks for 9"),
        ({"workload": "/nowhere/w.jsonl"}, "workload w.jsonl: No such file"),
        ({"cores": [4095]}, "cores [4095]"),
        ({"concurrency": 0}, "concurrency 0 needs rate_per_s"),
        ({"dialect": "telnet"}, "Invalid enum value 'telnet'"),
    ],
)
def test_an_unusable_job_is_one_line_and_exit_2(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    job = {**json.loads(job_for(1, tmp_path, ["good"])), **change}
    done = subprocess.run(client("drive"), input=json.dumps(job).encode(), capture_output=True, timeout=60)
    assert done.returncode == 2
    assert says in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""


def test_messages_need_the_chat_dialect(tmp_path: Path) -> None:
    job = json.loads(job_for(1, tmp_path, ["good"]))
    Path(job["workload"]).write_text('{"index":0,"output_len":4,"messages":[{"role":"user","content":"hi"}]}\n')
    done = subprocess.run(client("drive"), input=json.dumps(job).encode(), capture_output=True, timeout=60)
    assert done.returncode == 2
    assert b"dialect openai-chat" in done.stderr
