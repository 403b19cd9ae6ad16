"""The verbs as a user types them: one clear line and an exit code, never a traceback."""

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from invoke import Program

from tests.claims.folder import write
from tests.synthetic import Truth, build

ROOT = Path(__file__).parent.parent
VERBS = "list plan forecast doctor build fetch selftest run unlock report verify publish check test bench-client lock"


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


class Invoke:
    """Invoke's own program in this process: what a user types, without importing everything anew for each line."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str) -> Done:
        code = 0
        try:
            Program().run(["invoke", "--search-root", str(ROOT), *words], exit=True)
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Done(code, *self._capture.readouterr())


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    return Invoke(capsys)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(build(Truth()), tmp_path_factory.mktemp("runs") / "twin" / "2026-01-01-000000")


def test_every_verb_has_a_line_in_the_list_and_a_help(invoke: Invoke) -> None:
    listed = invoke("--list").stdout
    for name in VERBS.split():
        assert f"  {name} " in listed, name
    assert "--until-decided" in invoke("--help", "run").stdout


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "--scenario", "nosuch"], "run: no scenario 'nosuch'"),
        (["run"], "run: which scenario?"),
        (["plan", "--scenario", "smoke", "--set", "sweep.concurency=[1]"], "unknown key 'concurency'"),
        (["plan", "--scenario", "smoke", "--set", "sweep.seeds"], "--set sweep.seeds: write it as KEY=VALUE"),
        (["run", "--scenario", "smoke", "--until-decided", "--search"], "take one of them"),
        (["run", "--scenario", "smoke", "--engine", "podman"], "--engine podman: there are process and docker"),
        (["run", "--scenario", "smoke", "--seeds", "0"], "--seeds 0"),
        (["run", "--scenario", "smoke", "--seeds", "abc"], "--seeds abc"),
        (["run", "--scenario", "smoke", "--prompts", "x"], "no data set called `own`"),
        (["plan", "--scenario", "../scenarios/smoke"], "no scenario"),
        (["report", "--run", "nosuch"], "nosuch"),
        (["verify"], "verify: which run?"),
        (["verify", "--run", "README.md"], "README.md"),
        (["run", "--like", "nosuch"], "nosuch"),
        (["forecast", "--scenario", "l4-eagle3", "--card", "nosuch"], "nosuch"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_with_exit_code_2(invoke: Invoke, words: list[str], line: str) -> None:
    done = invoke(*words)
    assert done.returncode == 2, done.stderr
    assert line in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_report_of_a_run_has_the_five_points_and_is_the_same_bytes_each_time(invoke: Invoke, folder: Path) -> None:
    first = Path(invoke("report", "--run", str(folder)).stdout.strip())
    text = first.read_text()
    for number in range(1, 6):
        assert f"### {number}. " in text
    for heading in ("## The answer", "## Conditions", "## What to do", "## Doubts", "## Method and definitions"):
        assert heading in text
    before = {p.name: p.read_bytes() for p in first.parent.rglob("*") if p.is_file()}
    second = Path(invoke("report", "--run", str(folder)).stdout.strip())
    assert first == second
    assert {p.name: p.read_bytes() for p in second.parent.rglob("*") if p.is_file()} == before
    assert {"report.md", "report.html", "pools.svg"} <= set(before)


def test_publish_then_verify_and_report_read_it_back(invoke: Invoke, folder: Path, tmp_path: Path) -> None:
    made = invoke("publish", "--run", str(folder), "--to", str(tmp_path / "handed-on"), "--archive")
    assert made.returncode == 0, made.stderr
    archive = tmp_path / "handed-on.tar.gz"
    assert invoke("report", "--run", str(archive)).returncode == 0
    found = invoke("verify", "--run", str(archive), "--against", str(folder))
    assert found.returncode == 0, found.stdout + found.stderr


def test_paths_on_the_command_line_are_the_callers(folder: Path) -> None:
    done = subprocess.run(
        [str(ROOT / "inv"), "verify", "--run", folder.name],
        cwd=folder.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"Run `{folder.name}`" in done.stdout, done.stderr
