"""Against the real SGLang on the CPU: what the client counts is what the server counted, with speculation on."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.client.job import DriveJob, WorkloadLine
from kit.engine import Endpoint, Launch
from kit.engine.process import ProcessEngine
from kit.measurements import ClientLine, DriveEnd, RequestRecord
from kit.rehearsal import CpuServer, ensure_environment
from kit.rehearsal.environment import MARKER, environment_key
from kit.sglang.api import wait_until_generates

CACHE = Path(__file__).parents[2] / ".cache" / "cpu-sglang"
PORT = 31811
OUTPUT_TOKENS = 41
PROMPTS = [
    "The quick brown fox jumps over the lazy dog, and",
    "def add(a, b):\n    return",
    "一二三 grüße",
    "a b a b a b",
]
ARMS: dict[str, dict[str, str | int]] = {
    "plain": {},
    "eagle3": {
        "speculative-algorithm": "EAGLE3", "speculative-num-steps": 3, "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    },
    "ngram": {"speculative-algorithm": "NGRAM", "speculative-num-draft-tokens": 8},
}  # fmt: skip

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def cpu_server() -> CpuServer:
    if not (CACHE / environment_key() / MARKER).exists():
        pytest.skip("NO CPU SERVER: the client is NOT tested against the real SGLang; a run of a CPU scenario makes it")
    return ensure_environment(CACHE, lambda _: None)


@pytest.fixture(scope="module", params=ARMS)
def endpoint(
    request: pytest.FixtureRequest, cpu_server: CpuServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Endpoint, Path, str]]:
    folder = tmp_path_factory.mktemp(request.param)
    flags: dict[str, Any] = {**cpu_server.flags, **ARMS[request.param]}
    if request.param == "eagle3":
        flags["speculative-draft-model-path"] = cpu_server.models / "tiny-eagle3"
    model = str(cpu_server.models / "tiny-qwen3")
    argv = ["-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1", "--port", str(PORT)]
    argv += [
        part
        for name, value in flags.items()
        for part in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
    ]
    launch = Launch(
        argv=argv, env=cpu_server.env, models=[cpu_server.models / "tiny-qwen3", cpu_server.models / "tiny-eagle3"],
        workloads=folder, log=folder / "server.log", port=PORT, label="client-test",
    )  # fmt: skip
    engine = ProcessEngine(cpu_server.python, Path(sys.executable), folder / "state")
    with engine.serve(launch) as running:
        wait_until_generates(running, launch.log, 280.0)
        yield running, folder, request.param


def drive(endpoint: Endpoint, folder: Path, dialect: str) -> tuple[list[RequestRecord], DriveEnd]:
    workload = folder / "workload.jsonl"
    lines = [WorkloadLine(index=n, output_len=OUTPUT_TOKENS, text=prompt) for n, prompt in enumerate(PROMPTS * 3)]
    workload.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    job = DriveJob(
        host="127.0.0.1", port=PORT, workload=str(workload), requests=len(lines), concurrency=4, dialect=dialect,
        model="tiny-qwen3",
    )  # type: ignore[arg-type]  # fmt: skip
    got = [msgspec.json.decode(line, type=ClientLine) for line in endpoint.drive(job)]
    assert isinstance(got[-1], DriveEnd)
    return [line for line in got if isinstance(line, RequestRecord)], got[-1]


@pytest.mark.parametrize("dialect", ["generate", "openai-chat"])
def test_counted_tokens_are_the_servers(endpoint: tuple[Endpoint, Path, str], dialect: str) -> None:
    running, folder, arm = endpoint
    records, end = drive(running, folder, dialect)
    assert [record.error for record in records] == [None] * len(PROMPTS) * 3
    for record in records:
        assert sum(tokens for _, tokens in record.chunks) == record.completion_tokens == OUTPUT_TOKENS
        assert record.finish_reason == "length"
    assert end.watch.chunks == sum(len(record.chunks) for record in records)
    if dialect == "generate":
        assert all((record.spec is not None) == (arm != "plain") for record in records)
        assert all(record.spec.verify_steps for record in records if record.spec)
