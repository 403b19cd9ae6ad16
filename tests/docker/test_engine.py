"""The engine on a real daemon, with a fake SGLang in the container."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import msgspec
import pytest

from kit import build, doctor, scenario
from kit.client.job import DriveJob
from kit.engine import Endpoint, Launch, Reply
from kit.engine.docker import DockerEngine
from kit.errors import EngineLost, UnusableInput
from kit.measurements import DriveEnd, RequestRecord
from kit.scenario import Image
from tests.docker.conftest import STANDIN, containers, in_process, left_over, make_launch
from tests.docker.debian import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]  # the first test makes the base image
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


TRY = """
import socket, sys
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
        print("open")
    except OSError as error:
        print(type(error).__name__, error.errno)
"""


@pytest.fixture
def listener() -> Iterator[list[str]]:
    """A listener on every address of this machine, and those addresses; nothing beyond the machine is asked."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        shown = subprocess.run(["ip", "-4", "-o", "addr"], capture_output=True, text=True, check=True).stdout
        addresses = [line.split()[3].partition("/")[0] for line in shown.splitlines()]
        yield [f"{address}:{port}" for address in addresses if not address.startswith("127.")]


def test_the_server_cannot_reach_anything_outside_its_network(
    daemon: docker.DockerClient, engine: DockerEngine, launch: Launch, listener: list[str], debian_image: str
) -> None:
    outside = daemon.containers.run(debian_image, ["python3", "-c", TRY, *listener], remove=True)
    assert b"open" in outside, (
        "a container on Docker's own network reaches this machine, so the attempt means something"
    )
    with engine.serve(launch) as endpoint:
        wait_until_up(endpoint)
        [server] = containers(daemon, launch, "server")
        [beside] = containers(daemon, launch, "client")
        assert server.attrs["HostConfig"]["NetworkMode"] == f"container:{beside.id}"
        [network] = beside.attrs["NetworkSettings"]["Networks"].values()
        port = listener[0].rpartition(":")[2]
        tried = [*listener, f"{network['Gateway'] or '172.17.0.1'}:{port}"]
        code, said = server.exec_run(["python3", "-c", TRY, *tried])
    assert code == 0 and b"open" not in said and len(said.splitlines()) == len(tried), said


def test_no_port_is_published_and_mounts_are_read_only(
    daemon: docker.DockerClient, engine: DockerEngine, launch: Launch
) -> None:
    with engine.serve(launch) as endpoint:
        wait_until_up(endpoint)
        [server], [beside] = containers(daemon, launch, "server"), containers(daemon, launch, "client")
        assert not server.attrs["HostConfig"]["PortBindings"]
        assert all(not mount["RW"] for mount in (*server.attrs["Mounts"], *beside.attrs["Mounts"]))
        environment = server.attrs["Config"]["Env"]
        assert "HF_HUB_OFFLINE=1" in environment and not [e for e in environment if e.startswith("HF_TOKEN")]
        assert beside.attrs["Config"]["User"] == f"{os.getuid()}:{os.getgid()}"
        sets = {server.attrs["HostConfig"]["CpusetCpus"], beside.attrs["HostConfig"]["CpusetCpus"]}
        assert len(sets) == 2 or os.cpu_count() == 1


def test_a_server_that_dies_is_told_from_one_that_lives(
    daemon: docker.DockerClient, engine: DockerEngine, tmp_path: Path
) -> None:
    launch = make_launch(tmp_path, FAKE_FAIL="out_of_memory")
    with engine.serve(launch) as endpoint:
        for _ in range(100):
            if endpoint.exit_code() is not None:
                break
            time.sleep(0.1)
        assert endpoint.exit_code() not in (None, 0)
        assert endpoint.call("GET", "/server_info").status == 0, "nothing answers, and that is an answer"
    assert "memory" in launch.log.read_text().lower(), "the log is whole after the end"
    assert left_over(daemon) == []


def test_a_drive_that_is_given_up_early_leaves_nothing(
    daemon: docker.DockerClient, engine: DockerEngine, launch: Launch
) -> None:
    with engine.serve(launch) as endpoint:
        wait_until_up(endpoint)
        lines = endpoint.drive(job(launch, requests=64, concurrency=1))
        next(lines)
        lines.close()
    assert left_over(daemon) == []


def test_an_error_in_the_middle_leaves_nothing(
    daemon: docker.DockerClient, engine: DockerEngine, launch: Launch
) -> None:
    with pytest.raises(ZeroDivisionError), engine.serve(launch) as endpoint:
        wait_until_up(endpoint)
        raise ZeroDivisionError
    assert left_over(daemon) == []


def test_a_job_the_client_cannot_use_is_one_line(
    daemon: docker.DockerClient, engine: DockerEngine, launch: Launch
) -> None:
    with engine.serve(launch) as endpoint, pytest.raises(EngineLost, match=r"client ended with code 2 .*requests must"):
        list(endpoint.drive(job(launch, requests=0)))
    assert left_over(daemon) == []


def test_case_71_no_device_driver_names_the_toolkit_before_anything_is_downloaded(
    daemon: docker.DockerClient, tmp_path: Path
) -> None:
    """This machine's daemon has no NVIDIA runtime, so its own words are heard; the image does not even exist."""
    if shutil.which("nvidia-container-runtime-hook"):
        pytest.skip("this machine has the NVIDIA Container Toolkit")
    before = {i.id for i in daemon.images.list()}
    absent = Image(ref="example.invalid/sglang:v0@sha256:" + "0" * 64, sglang="0")
    with pytest.raises(UnusableInput, match="install the NVIDIA Container Toolkit"):
        DockerEngine(absent, gpus=[0]).check(30000)
    with pytest.raises(UnusableInput, match="install the NVIDIA Container Toolkit"):
        build.build(absent, tmp_path / "image.json", print, gpus=[0])
    assert {i.id for i in daemon.images.list()} == before and left_over(daemon) == []


def test_a_tag_without_a_digest_is_refused(daemon: docker.DockerClient, built: build.Built) -> None:
    with pytest.raises(UnusableInput, match="has no digest.*--allow-unpinned"):
        DockerEngine(STANDIN).check(30000)


def test_a_missing_image_names_the_build(daemon: docker.DockerClient) -> None:
    with pytest.raises(UnusableInput, match="`invoke build`"):
        DockerEngine(Image(ref="nowhere:1", sglang="1"), allow_unpinned=True).check(30000)


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:2375", "ssh://somewhere"])
def test_a_daemon_elsewhere_is_refused_with_the_reason(address: str) -> None:
    ended = in_process("DockerEngine(STANDIN, allow_unpinned=True).check(30000)", DOCKER_HOST=address)
    assert ended.returncode == 2 and "the card that is read and locked" in ended.stderr


def test_no_daemon_is_one_line(tmp_path: Path) -> None:
    ended = in_process("DockerEngine(STANDIN).clean()", DOCKER_HOST=f"unix://{tmp_path}/none.sock")
    assert ended.returncode == 2 and "no Docker daemon answers" in ended.stderr and ended.stderr.count("\n") == 1


def test_case_71_the_doctor_names_the_toolkit_and_the_build(daemon: docker.DockerClient, tmp_path: Path) -> None:
    if shutil.which("nvidia-container-runtime-hook"):
        pytest.skip("this machine has the NVIDIA Container Toolkit")
    places = doctor.Places(models=tmp_path, datasets=tmp_path, results=tmp_path)
    rows = {r.name: r for r in doctor.examine(scenario.load(ROOT / "scenarios" / "l4-eagle3.toml"), places)}
    assert rows["Docker"].state == "ok"
    assert rows["NVIDIA runtime"].way_out.startswith("install the NVIDIA Container Toolkit")
    assert rows["NVIDIA runtime"].state == "fail" and doctor.exit_code(list(rows.values())) == 1
    assert rows["image"].state == "fail" and "`invoke build`" in rows["image"].way_out
    assert left_over(daemon) == []
