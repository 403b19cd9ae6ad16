"""The daemon is stopped while a run is under way: a daemon of the test's own, on a socket of its own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import build
from tests.docker.conftest import runner

pytestmark = pytest.mark.docker

DRIVE = """\
from kit.client.job import DriveJob
launch = make_launch(Path({folder!r}), FAKE_STEP_MS="200")
with DockerEngine(STANDIN, allow_unpinned=True).serve(launch) as endpoint:
    while endpoint.call("GET", "/server_info").status != 200: time.sleep(0.1)
    job = DriveJob(host="", port=launch.port, workload=str(launch.workloads / "w.jsonl"), requests=64, concurrency=1)
    for line in endpoint.drive(job): print("line", flush=True)
"""


class Daemon:
    """A dockerd below a folder, with networks and mounts of its own: the machine's own daemon notices nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"unix://{folder}/docker.sock"

    def start(self) -> None:
        place = self._folder
        command = [
            "unshare", "--net", "--mount", "dockerd", f"--host={self.address}", f"--data-root={place}/data",
            f"--exec-root={place}/exec", f"--pidfile={place}/pid",
        ]  # fmt: skip
        with (place / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for _ in range(300):
            if self._answers():
                return
            time.sleep(0.1)
        raise AssertionError((place / "dockerd.log").read_text()[-2000:])

    def stop(self) -> None:
        """Stops it as a service manager does."""
        self._process.terminate()
        self._process.wait(timeout=60)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            return line.connect_ex(self.address.removeprefix("unix://")) == 0


@pytest.fixture
def own_daemon(built: build.Built, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
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


def test_a_daemon_stopped_in_a_drive_is_one_clear_line_and_the_next_run_goes_on(
    own_daemon: Daemon, tmp_path: Path
) -> None:
    env = {**os.environ, "DOCKER_HOST": own_daemon.address}
    with subprocess.Popen(
        runner(DRIVE.format(folder=str(tmp_path / "1"))),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "line\n"
        own_daemon.stop()
        said = process.stderr.read()
        assert process.wait(timeout=60) == 1
    assert "the Docker daemon went away while a trial ran" in said and said.count("\n") == 1
    own_daemon.start()
    again = "print(DockerEngine(STANDIN, allow_unpinned=True).clean())\n" + DRIVE.format(folder=str(tmp_path / "2"))
    again = again.replace("requests=64", "requests=2")
    ended = subprocess.run(runner(again), env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("line") == 3 and "container" in ended.stdout
    listing = ["docker", "--host", own_daemon.address, "ps", "--all", "--quiet"]
    assert subprocess.run(listing, capture_output=True, text=True, check=True).stdout == ""
