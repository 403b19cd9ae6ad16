"""The main job on a real SGLang server: a small smoke run through the verbs, and what can be done with its results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import measurements

ROOT = Path(__file__).parent.parent
SMALL = ["--set", "sweep.seeds=[1]", "--set", "sweep.concurrency=[1,4]", "--set", "server.port=30411"]

pytestmark = [pytest.mark.server, pytest.mark.timeout(1500)]


def invoke(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "invoke", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def report() -> Path:
    done = invoke("run", "--scenario", "smoke", *SMALL)
    assert done.returncode == 0, done.stderr[-2000:]
    return Path(done.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def folder(report: Path) -> Path:
    return ROOT / "results" / "smoke" / report.parent.name


def test_the_server_was_a_real_one(folder: Path) -> None:
    for log in folder.glob("sitting-1/*/server.log"):
        text = log.read_text()
        assert "max_total_num_tokens=20000" in text
        assert "POST /generate" in text
    m = measurements.read(folder)
    assert {s.facts.version for _, s in m.servers} == {"0.5.23"}
    assert {s.facts.pool_tokens for _, s in m.servers} == {20000}


def test_every_token_is_counted_as_the_server_counted_it(folder: Path) -> None:
    for trial in measurements.read(folder).trials:
        for request in trial.requests:
            assert request.error is None
            assert sum(n for _, n in request.chunks) == request.completion_tokens


def test_the_report_says_on_its_first_line_that_it_is_a_rehearsal(report: Path) -> None:
    first = report.read_text().splitlines()[0]
    for word in ("Rehearsal", "CPU", "random", "forced"):
        assert word in first


def test_the_five_points_are_filled_in(report: Path) -> None:
    text = report.read_text()
    for number in range(1, 6):
        assert f"### {number}. " in text


def test_results_hold_no_path_of_this_machine(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert str(ROOT) not in text, path
            assert str(Path.home()) + "/" not in text, path


def test_verify_against_itself_holds(folder: Path) -> None:
    done = invoke("verify", "--run", str(folder), "--against", str(folder), "--json")
    found = json.loads(done.stdout)
    assert [c for c in found["compared"] if c["outcome"] == "fails"] == []
    assert found["differences"] == []


def test_forced_acceptance_is_what_was_forced(folder: Path) -> None:
    (facts,) = {(s.facts.forced_accept_length, s.facts.algorithm) for _, s in measurements.read(folder).servers
                if s.arm == "eagle3"}  # fmt: skip
    assert facts == (2.6, "EAGLE3")


def test_data_sets_come_through_the_real_server(tmp_path: Path) -> None:
    shared = ROOT.parent / "shared" / "data"
    if not shared.is_dir():
        pytest.skip("../shared/data is not here: GSM8K and HumanEval are not downloaded in a test")
    for name in ("gsm8k-test.jsonl", "HumanEval.jsonl.gz"):
        (tmp_path / name).symlink_to(shared / name)
    command = [sys.executable, "-m", "invoke", "run", "--scenario", "smoke-datasets", "--set", "sweep.seeds=[1]"]
    done = subprocess.run(
        [*command, "--set", "server.port=30412"],
        cwd=ROOT,
        env={**os.environ, "KIT_DATASETS": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    text = Path(done.stdout.strip().splitlines()[-1]).read_text()
    for name in ("### gsm8k", "### code"):
        table = text.partition(name)[2].partition("###")[0]
        (row,) = [line for line in table.splitlines() if "ngram" in line][:1]
        assert float(row.split("|")[-2]) > 1, "the accept length of NGRAM is shown for each data set"
