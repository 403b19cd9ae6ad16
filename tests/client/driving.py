"""The client as a program of its own: its command line, a job for it, and one drive to its end."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from bad_server import BadServer

from kit.client.job import DriveJob, WorkloadLine
from kit.measurements import ClientLine, DriveEnd, RequestRecord

Drive = Callable[..., tuple[list[RequestRecord], DriveEnd]]


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
