"""A daemon is stopped, a runner killed or told to stop: what was measured is kept, and the next run goes on."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from kit import build
from tests.docker.conftest import left_over, runner
from tests.docker.debian import ROOT
from tests.docker.own import Daemon

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]  # the first test makes the base image

RUN = """\
from kit import run, scenario, setup
import msgspec
places = msgspec.structs.replace(setup.folders(Path({root!r})), results=Path({folder!r}))
class Lines:
    def say(self, text): print(text, flush=True)
    def expect(self, trials, starts): print("expect", trials, flush=True)
    def started(self, seconds): pass
    def trial(self, name, seconds): print("trial" if seconds is None else "done", name, flush=True)
chosen = msgspec.structs.replace(scenario.load(Path({file!r})), image=STANDIN)
made = setup.put_together(chosen, places, setup.Choices(allow_unpinned=True), print)
print("folder", run.run(made, Lines()), flush=True)
"""

SCENARIO = f"""\
title = "Stand-in"
question = "Does a run end as it should?"
engine = "docker"

[model]
path = "{ROOT}/tests/workload/model"

[arms.plain]
env = {{ FAKE_STEP_MS = "40" }}

[datasets.random-ids]
source = "random-ids"
input_len = 8
output_len = 8

[sweep]
concurrency = [1]
seeds = [1, 2, 3, 4]
min_requests = 8
warmup_per_user = 0
"""


class Runner:
    """`kit.run` on the scenario above, in a process, on the daemon that the environment names."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.results = folder / "results"
        file = folder / "standin.toml"
        file.write_text(SCENARIO)
        self._command = runner(RUN.format(root=str(ROOT), folder=str(self.results), file=str(file)))
        self._env = {**os.environ, **env}

    def start(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )

    def finish(self) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self._command, env=self._env, capture_output=True, text=True, check=False, cwd=ROOT)

    def complete(self) -> dict[str, float]:
        """Trials that are complete, and when they became so."""
        markers = self.results.rglob("b1-*/*/complete")
        return {str(m.parent.relative_to(self.results)): m.stat().st_mtime for m in markers}


def wait_for(process: "subprocess.Popen[str]", words: str, times: int = 1) -> None:
    assert process.stdout
    for line in process.stdout:
        times -= line.startswith(words)
        if not times:
            return
    raise AssertionError(process.stderr and process.stderr.read())


@pytest.fixture
def own_daemon(built: build.Built) -> Iterator[Daemon]:
    if os.getuid() or not shutil.which("dockerd"):
        pytest.skip("a daemon of the test's own needs root and dockerd")
    folder = Path("/tmp") / f"kit-dockerd-{os.getpid()}"  # a socket's path is short
    folder.mkdir()
    daemon = Daemon(folder)
    daemon.start()
    load = f"docker save {built.name} | docker --host {daemon.address} load --quiet"
    subprocess.run(load, shell=True, check=True)
    yield daemon
    daemon.stop()
    shutil.rmtree(folder)


def test_a_daemon_stopped_in_a_trial_is_one_clear_line_and_the_next_run_goes_on(
    own_daemon: Daemon, tmp_path: Path
) -> None:
    running = Runner(tmp_path, DOCKER_HOST=own_daemon.address)
    with running.start() as process:
        wait_for(process, "trial", times=3)
        own_daemon.stop()
        assert process.stderr
        said = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert "the Docker daemon went away while" in said and said.count("\n") == 1
    kept = running.complete()
    assert len(kept) == 2
    own_daemon.start()
    ended = running.finish()
    assert ended.returncode == 0, ended.stderr
    assert "left over from an earlier run: container" in ended.stdout and "expect 2\n" in ended.stdout
    after = running.complete()
    assert len(after) == 4 and all(after[name] == at for name, at in kept.items()), "what was measured is not again"
    listing = ["docker", "--host", own_daemon.address, "ps", "--all", "--quiet"]
    assert subprocess.run(listing, capture_output=True, text=True, check=True).stdout == ""


def test_a_killed_runner_s_containers_go_with_the_next_run_which_goes_on(
    daemon: docker.DockerClient, built: build.Built, tmp_path: Path
) -> None:
    running = Runner(tmp_path)
    with running.start() as process:
        wait_for(process, "trial", times=2)
        process.kill()
    kept = running.complete()
    assert len(left_over(daemon)) == 3 and len(kept) == 1
    ended = running.finish()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("left over from an earlier run") == 3 and "expect 3\n" in ended.stdout
    assert left_over(daemon) == [] and len(running.complete()) == 4
    owners = {p.stat().st_uid for p in running.results.rglob("*")}
    assert owners == {os.getuid()}, "the results are the caller's"


def test_an_interrupted_run_leaves_no_container_and_goes_on(
    daemon: docker.DockerClient, built: build.Built, tmp_path: Path
) -> None:
    running = Runner(tmp_path)
    with running.start() as process:
        wait_for(process, "trial", times=2)
        process.terminate()
        process.wait(timeout=60)
    assert left_over(daemon) == []
    ended = running.finish()
    assert ended.returncode == 0 and "left over" not in ended.stdout and "expect 3\n" in ended.stdout, ended.stderr
    assert len(running.complete()) == 4 and left_over(daemon) == []
