"""Whatever ends a run, nothing of it is left on the daemon, and nothing of another run is touched."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import pytest

from kit import build, image
from kit.engine import owner
from kit.engine.docker import DockerEngine
from tests.docker.conftest import left_over, runner

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]  # the first test makes the base image

SERVE = """\
engine = DockerEngine(STANDIN, allow_unpinned=True)
with engine.serve(make_launch(Path({folder!r}), label={label!r})) as endpoint:
    while endpoint.call("GET", "/server_info").status != 200: time.sleep(0.1)
    print("up", flush=True)
    {then}
"""


@contextmanager
def running(
    folder: Path, label: str = "smoke-1", then: str = "time.sleep(600)", **env: str
) -> Iterator["subprocess.Popen[str]"]:
    """A runner in a process and a session of its own, whose server is up."""
    folder.mkdir(exist_ok=True)
    command = runner(SERVE.format(folder=str(folder), label=label, then=then))
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **env},
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "up\n", process.stderr and process.stderr.read()
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("then", ["time.sleep(600)", 'while True: endpoint.call("GET", "/server_info")'])
def test_a_signal_leaves_nothing(
    daemon: docker.DockerClient, built: build.Built, tmp_path: Path, number: signal.Signals, then: str
) -> None:
    with running(tmp_path, then=then) as process:
        assert len(left_over(daemon)) == 3, "two containers and a network"
        os.killpg(process.pid, number)
        process.wait(timeout=60)
    assert left_over(daemon) == []


def test_what_kill_9_leaves_is_removed_by_the_next_run_and_no_other_run_is_touched(
    daemon: docker.DockerClient, engine: DockerEngine, tmp_path: Path
) -> None:
    with running(tmp_path / "other", label="smoke-1"), running(tmp_path / "killed", label="smoke-11") as killed:
        others = [name for name in left_over(daemon) if "smoke-11-" not in name]
        killed.kill()
        killed.wait()
        assert len(left_over(daemon)) == 6, "kill -9 leaves containers and network"
        said = engine.clean()
        assert len(said) == 3 and all("smoke-11-" in line for line in said)
        assert sorted(left_over(daemon)) == sorted(others), "the living run with the same prefix survives"
        assert engine.clean() == []


def test_a_volume_of_a_dead_run_goes_and_one_that_cannot_be_judged_stays(
    daemon: docker.DockerClient, engine: DockerEngine
) -> None:
    """Labels of an earlier boot are a dead run's; another PID namespace of this boot may still live."""
    label = f"{image.KIT}.owner"
    dead = '{"pid": 1, "started": 1, "boot": "earlier", "space": "x"}'
    elsewhere = f'{{"pid": 1, "started": 1, "boot": "{owner.me().boot}", "space": "pid:[1]"}}'
    made = [daemon.volumes.create(labels={label: text}) for text in (dead, elsewhere, "not ours")]
    try:
        assert engine.clean() == [f"volume {made[0].name}"]
        assert {v.name for v in daemon.volumes.list(filters={"label": label})} == {v.name for v in made[1:]}
    finally:
        for volume in made[1:]:
            volume.remove(force=True)


def test_a_proxy_and_a_token_of_the_caller_do_not_enter_the_containers(
    daemon: docker.DockerClient, built: build.Built, tmp_path: Path
) -> None:
    proxies = {"default": {"httpProxy": "http://user:secret@proxy.invalid:1", "httpsProxy": "http://proxy.invalid:1"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    caller = {"DOCKER_CONFIG": str(tmp_path), "HF_TOKEN": "hf_secret", "http_proxy": "http://proxy.invalid:1"}
    with running(tmp_path, label="smoke-proxy", **caller):
        found = daemon.containers.list(filters={"label": f"{image.KIT}.run=smoke-proxy"})
        assert len(found) == 2
        for container in found:
            assert not [e for e in container.attrs["Config"]["Env"] if "proxy" in e.lower() or "secret" in e]
