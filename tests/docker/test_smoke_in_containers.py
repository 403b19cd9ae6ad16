"""The whole smoke scenario with the real SGLang in containers: the report's numbers come through the Docker path."""

import json
import os
import subprocess
from pathlib import Path

import docker
import pytest

from kit import build
from kit.scenario import Image
from tests.docker import debian
from tests.docker.conftest import certificates, left_over

pytestmark = [pytest.mark.docker, pytest.mark.server, pytest.mark.timeout(1800)]


def test_the_smoke_scenario_runs_in_containers_and_reports(
    daemon: docker.DockerClient, cpu_base: Image, tmp_path: Path
) -> None:
    build.build(cpu_base, tmp_path / "image.json", print, ca=certificates(), allow_unpinned=True)
    command = ["./inv", "run", "--scenario", "smoke", "--engine", "docker", "--allow-unpinned"]
    for key, value in (("ref", cpu_base.ref), ("sglang", cpu_base.sglang)):
        command += ["--set", f'image.{key}="{value}"']
    ended = subprocess.run(command, cwd=debian.ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    report = debian.ROOT / ended.stdout.strip().splitlines()[-1]
    run = json.loads((report.parent / "run.json").read_text())
    assert run["engine"] == "docker" and run["unpinned"] is True
    assert "docker" in report.read_text()
    assert not [p for p in report.parent.rglob("*") if p.stat().st_uid != os.getuid()], "the results are the caller's"
    assert left_over(daemon) == []
