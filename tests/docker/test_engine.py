"""The engine on a real daemon, with a fake SGLang in the container."""

import time

import docker
import msgspec
import pytest

from kit.client.job import DriveJob
from kit.engine import Endpoint, Launch, Reply
from kit.engine.docker import DockerEngine
from kit.measurements import DriveEnd, RequestRecord
from tests.docker.conftest import left_over

pytestmark = pytest.mark.docker
LINE = msgspec.json.Decoder(RequestRecord | DriveEnd)


def wait_until_up(endpoint: Endpoint) -> Reply:
    for _ in range(100):
        reply = endpoint.call("GET", "/server_info")
        if reply.status == 200:
            return reply
        assert endpoint.exit_code() is None
        time.sleep(0.1)
    raise AssertionError(f"the server does not answer: {reply}")


def job(launch: Launch, **changes: object) -> DriveJob:
    base = DriveJob(host="", port=launch.port, workload=str(launch.workloads / "w.jsonl"), requests=8, concurrency=4)
    return msgspec.structs.replace(base, **changes)


def test_a_server_in_a_container_is_driven_from_beside_it(
    daemon: docker.DockerClient, engine: DockerEngine, launch: Launch
) -> None:
    facts = engine.check(launch.port)
    assert facts["image_sglang"] == "0.5.17" and facts["image_pinned"] == "no"
    with engine.serve(launch) as endpoint:
        info = wait_until_up(endpoint)
        assert msgspec.json.decode(info.body)["version"] == "0.5.17"
        lines = [LINE.decode(line) for line in endpoint.drive(job(launch))]
        assert endpoint.exit_code() is None
    records = [line for line in lines if isinstance(line, RequestRecord)]
    assert len(records) == 8 and all(r.error is None and r.completion_tokens == 16 for r in records)
    assert isinstance(lines[-1], DriveEnd) and lines[-1].watch.cores == engine.client_cores
    assert "max_total_num_tokens=" in launch.log.read_text()
    assert left_over(daemon) == []
