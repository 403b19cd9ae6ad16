"""The whole smoke scenario with the real SGLang in containers: the report's numbers come through the Docker path."""

import os
from pathlib import Path

import docker
import msgspec
import pytest

from kit import build, measurements, report, run, scenario, setup
from kit.measurements import COMPLETE, RequestRecord, RunRecord
from kit.progress import Terminal
from kit.scenario import Image
from tests.docker.conftest import certificates, left_over
from tests.docker.debian import ROOT

pytestmark = [pytest.mark.docker, pytest.mark.server, pytest.mark.timeout(1800)]


def test_the_smoke_scenario_runs_in_containers_and_reports(
    daemon: docker.DockerClient, cpu_base: Image, tmp_path: Path
) -> None:
    build.build(cpu_base, tmp_path / "image.json", print, ca=certificates(), allow_unpinned=True)
    smoke = msgspec.structs.replace(scenario.load(ROOT / "scenarios" / "smoke.toml"), image=cpu_base)
    places = msgspec.structs.replace(setup.folders(ROOT), results=tmp_path / "results")
    choices = setup.Choices(engine="docker", allow_unpinned=True)
    with Terminal() as terminal:
        folder = run.run(setup.put_together(smoke, places, choices, terminal.say), terminal)
    record = measurements.read_record(folder / "run.json", RunRecord)
    assert record.engine == "docker" and record.unpinned and record.image["image_base"] == cpu_base.ref
    trials = sorted(p.parent for p in folder.rglob(COMPLETE) if p.parent != folder)
    assert len(trials) == 24
    for trial in trials:
        lines = measurements.read_lines(trial / "requests.jsonl", RequestRecord)
        measured = [r for r in lines if not r.warmup]
        assert measured and all(r.error is None and r.completion_tokens == 32 for r in measured), trial
    text = report.write(folder, ROOT / "templates", tmp_path / "reports").read_text()
    assert "Engine: docker" in text and "not pinned by digest" in text
    assert not [p for p in folder.rglob("*") if p.stat().st_uid != os.getuid()], "the results are the caller's"
    assert left_over(daemon) == []
