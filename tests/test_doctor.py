"""The doctor on machines that lack this or that; none of these machines has a card."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kit import doctor, scenario
from kit.doctor import Check, Places
from kit.measurements import GpuFacts

ROOT = Path(__file__).parent.parent


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(models=tmp_path / "models", datasets=tmp_path / "datasets", results=tmp_path / "results")


def load(name: str, **sets: str) -> scenario.Scenario:
    return scenario.load(scenario.find(name, ROOT / "scenarios"), sets)


def row(rows: list[Check], name: str) -> Check:
    return next(r for r in rows if r.name == name)


def test_the_rehearsal_needs_neither_docker_nor_card_nor_files(places: Places) -> None:
    rows = doctor.examine(load("smoke"), places)
    assert doctor.exit_code(rows) == 0 and "Docker" not in [r.name for r in rows]
    assert row(rows, "data set random-ids").detail == "made from seeds, needs no file"


def test_missing_weights_and_data_fail_with_the_way_out(places: Places) -> None:
    rows = doctor.examine(load("l4-datasets"), places, engine="process")
    assert doctor.exit_code(rows) == 1
    for name in ("model Qwen/Qwen3-8B", "data set gsm8k"):
        assert row(rows, name).state == "fail" and row(rows, name).way_out.startswith("`invoke fetch")


def test_weights_that_are_there_are_weighed_and_an_unverified_revision_is_said(places: Places) -> None:
    place = places.models / "Qwen--Qwen3-8B@unverified"
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    found = row(doctor.examine(load("l4-datasets"), places, engine="process"), "model Qwen/Qwen3-8B")
    assert found.state == "ok" and "revision not verified" in found.detail


def test_case_52_a_damaged_data_set_names_file_and_hash(places: Places) -> None:
    places.datasets.mkdir()
    (places.datasets / "gsm8k-test.jsonl").write_text("cut")
    found = row(doctor.examine(load("l4-datasets"), places, engine="process"), "data set gsm8k")
    assert found.state == "fail" and "sha256 is" in found.detail


def test_the_readers_own_prompts_are_looked_for_where_they_say(places: Places, tmp_path: Path) -> None:
    mine = msgspec.structs.replace(
        load("smoke"), datasets={"own": scenario.Dataset(source="prompts", path="none.jsonl")}
    )
    assert row(doctor.examine(mine, places), "data set own").way_out == "give your file with --prompts"


@pytest.mark.parametrize(
    ("driver", "state"), [("580.65.06", "ok"), ("595.1", "ok"), ("570.172.08", "warn"), ("", "warn"), (None, "warn")]
)
def test_the_driver_is_held_against_the_images_cuda(driver: str | None, state: str) -> None:
    assert [r.state for r in doctor.driver_rows([GpuFacts(index=0, driver=driver)])] == [state]
    assert doctor.driver_rows([]) == []


@pytest.mark.parametrize(
    ("name", "state"), [("None", "warn"), ("scenario.load(Path('scenarios/l4-eagle3.toml'))", "fail")]
)
def test_no_daemon_is_a_warning_until_a_scenario_needs_it(tmp_path: Path, name: str, state: str) -> None:
    """In a process of its own, since the environment says where the daemon is."""
    program = f"""
from pathlib import Path
from kit import doctor, scenario
here = Path({str(tmp_path)!r})
rows = doctor.examine({name}, doctor.Places(models=here, datasets=here, results=here))
print([(r.state, r.way_out) for r in rows if r.name == "Docker"], doctor.exit_code(rows))
"""
    env = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert f"('{state}', 'start it (`sudo systemctl start docker`), let DOCKER_HOST name" in ended.stdout
    assert ended.stdout.strip().endswith("1" if state == "fail" else "0")
