"""The client as a program of its own against a server on a real socket."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bad_server import BadServer, bad_server

from kit.client.job import DriveJob, WorkloadLine
from kit.measurements import ClientLine, DriveEnd, RequestRecord

Drive = Callable[..., tuple[list[RequestRecord], DriveEnd]]


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad_server() as running:
        yield running


def job_for(port: int, folder: Path, prompts: list[str], **asked: Any) -> bytes:
    """A job that sends `prompts` in order, one at a time unless `asked` says more."""
    workload = folder / "workload.jsonl"
    lines = [WorkloadLine(index=n, output_len=6, text=prompt) for n, prompt in enumerate(prompts)]
    workload.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    given = {"host": "127.0.0.1", "port": port, "workload": str(workload), "requests": len(prompts), "concurrency": 1}
    return msgspec.json.encode(DriveJob(**{**given, **asked}))


def client(*arguments: str) -> list[str]:
    """The client's command line."""
    return [sys.executable, "-m", "kit.client", *arguments]


def drive_all(
    server: BadServer, folder: Path, prompts: list[str], **asked: Any
) -> tuple[list[RequestRecord], DriveEnd]:
    """One drive to its end: its records in the prompts' order, and its last word."""
    job = job_for(server.port, folder, prompts, **asked)
    done = subprocess.run(client("drive"), input=job, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = [msgspec.json.decode(line, type=ClientLine) for line in done.stdout.splitlines()]
    assert isinstance(lines[-1], DriveEnd)
    records = [line for line in lines[:-1] if isinstance(line, RequestRecord)]
    assert len(records) == len(lines) - 1
    return sorted(records, key=lambda record: record.index), lines[-1]


@pytest.fixture
def drive(server: BadServer, tmp_path: Path) -> Drive:
    return functools.partial(drive_all, server, tmp_path)


def chat_frame(delta: dict[str, Any] | None, usage: int | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One chunk of an OpenAI chat stream; no delta: the closing usage chunk."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    counts = {"prompt_tokens": 9, "completion_tokens": usage, "total_tokens": 9 + (usage or 0), **more}
    body = {"object": "chat.completion.chunk", "choices": choices, "usage": None if usage is None else counts}
    return b"data: " + json.dumps(body).encode() + b"\n\n"
