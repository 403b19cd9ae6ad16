"""The order of events against a fake server with true processes; resuming after every kind of end."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from kit import measurements, plan, run, run_folder
from kit.engine import Endpoint, Launch
from kit.engine.process import ProcessEngine
from kit.errors import RunFailed, ServerFailed, UnusableInput
from kit.run_folder import freeze_all, measuring, open_run
from kit.scenario import Arm, Limits, Scenario
from tests import pipeline

ROOT = Path(__file__).parent.parent


@pytest.fixture
def port() -> int:
    return pipeline.free_port()


class Left(NamedTuple):
    """A run that is over, and what it was asked. Tests that go on with it take a copy of its results."""

    scenario: Scenario
    results: Path

    def copied(self, place: Path) -> tuple[run_folder.Setup, Path]:
        """What would go on with the run at another place, and the run's folder there."""
        results = shutil.copytree(self.results, place / "results")
        (folder,) = results.glob("pipeline/*")
        return pipeline.setup(self.scenario, results, place / "state"), folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """One trial, measured."""
    home, single = tmp_path_factory.mktemp("finished"), pipeline.short(pipeline.free_port(), arms={"plain": Arm()})
    run.run(pipeline.setup(single, home / "results", home / "state"), pipeline.Quiet())
    return Left(single, home / "results")


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A run whose server died in its second trial."""
    home, wanted = tmp_path_factory.mktemp("died"), pipeline.scenario(pipeline.free_port())
    dying = Arm(env={"FAKE_FAIL": "exit_after_requests:8"})
    wanted = msgspec.structs.replace(wanted, arms={"plain": dying}, limits=Limits(silence_timeout_s=5))
    with pytest.raises(RunFailed):
        run.run(pipeline.setup(wanted, home / "results", home / "state"), pipeline.Quiet())
    return Left(wanted, home / "results")


def test_the_same_command_on_a_finished_run_starts_a_new_one(finished: Left, tmp_path: Path) -> None:
    ready, first = finished.copied(tmp_path)
    assert run.run(ready, pipeline.Quiet()) != first


def test_kill_9_of_the_runner_costs_the_trial_under_way_and_nothing_else(tmp_path: Path, port: int) -> None:
    results, state = tmp_path / "results", tmp_path / "state"
    command = [sys.executable, "-m", "tests.pipeline", str(results), str(state), str(port)]
    runner = subprocess.Popen(command, cwd=ROOT, env=marked(tmp_path))
    wait_for(lambda: list(results.glob("*/*/sitting-1/b1-2-eagle3/*/requests.jsonl")))
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    before = {p: p.stat().st_mtime_ns for p in results.glob("*/*/sitting-1/*/*/complete")}
    assert before
    quiet = pipeline.Quiet()
    folder = run.run(pipeline.setup(pipeline.short(port), results, state), quiet)
    after = {p: p.stat().st_mtime_ns for p in folder.glob("sitting-1/*/*/complete")}
    assert len(after) == 3
    assert {p: t for p, t in after.items() if p in before} == before
    assert len(quiet.trials) == 3 - len(before)
    assert len(list(results.glob("pipeline/*/run.json"))) == 1
    assert not left_of(tmp_path)


def test_sigterm_ends_the_server_too(tmp_path: Path, port: int) -> None:
    command = [sys.executable, "-m", "tests.pipeline", str(tmp_path / "results"), str(tmp_path / "state"), str(port)]
    runner = subprocess.Popen(command, cwd=ROOT, env=marked(tmp_path))
    wait_for(lambda: list((tmp_path / "results").glob("*/*/sitting-1/*/*/requests.jsonl")))
    runner.terminate()
    runner.wait()
    wait_for(lambda: not left_of(tmp_path))


def test_a_port_in_use_is_one_line_before_anything_is_started(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(UnusableInput, match=f"port {port}"):
            run.run(pipeline.setup(pipeline.scenario(port), tmp_path / "results", tmp_path / "state"), pipeline.Quiet())
    assert not list((tmp_path / "results").rglob("server.log"))


def test_a_server_that_does_not_start_says_why_and_leaves_the_earlier_arm(tmp_path: Path, port: int) -> None:
    wanted = pipeline.short(port)
    broken = Arm(draft=True, flags={"speculative-algorithm": "EAGLE3"}, env={"FAKE_FAIL": "pool_too_small"})
    wanted = msgspec.structs.replace(wanted, arms={"plain": Arm(), "eagle3": broken})
    with pytest.raises(ServerFailed, match="mem-fraction-static") as caught:
        run.run(pipeline.setup(wanted, tmp_path / "results", tmp_path / "state"), pipeline.Quiet())
    assert caught.value.kind == "pool_too_small"
    (folder,) = (tmp_path / "results").glob("pipeline/*")
    assert len(measurements.read(folder).trials) == 1


def test_a_server_that_dies_in_a_trial_ends_the_run_and_keeps_what_was_measured(died: Left) -> None:
    (folder,) = died.results.glob("pipeline/*")
    m = measurements.read(folder)
    assert m.trials
    assert m.incomplete


def test_a_changed_workload_is_refused_on_resume(died: Left, tmp_path: Path) -> None:
    ready, folder = died.copied(tmp_path)
    path = folder / "workloads" / "ids-s1.jsonl"
    path.write_bytes(path.read_bytes().replace(b"1000", b"1001", 1))
    with pytest.raises(UnusableInput, match="ids-s1.jsonl: changed since it was frozen"):
        run.run(ready, pipeline.Quiet())


# ---- another run, another server ------------------------------------------------------------------------------------


class Occupied(ProcessEngine):
    """An engine on whose port another server is up before its own is."""

    @contextmanager
    def serve(self, launch: Launch) -> Iterator[Endpoint]:  # type: ignore[override]
        argv = ["-m", "sglang.launch_server", "--port", str(launch.port), "--served-model-name", "another"]
        other = msgspec.structs.replace(launch, argv=argv, env={}, log=launch.log.with_name("other.log"))
        side = ProcessEngine(self._python, self._client_python, self._state / "other", self._env)
        with super().serve(launch) as endpoint, side.serve(other):
            yield endpoint


def test_another_runs_server_on_the_port_is_never_measured_as_ours(tmp_path: Path, port: int) -> None:
    wanted = pipeline.scenario(port, arms={"plain": Arm(env={"FAKE_START_MS": "600000"})})
    ready = pipeline.setup(wanted, tmp_path / "results", tmp_path / "state")
    engine = Occupied(
        Path(sys.executable), Path(sys.executable), tmp_path / "state", {"PYTHONPATH": str(pipeline.FAKES)}
    )
    with pytest.raises(RunFailed, match=f"another server answers on port {port}"):
        run.run(msgspec.structs.replace(ready, engine=engine), pipeline.Quiet())
    assert not list((tmp_path / "results").rglob("server.json"))
    assert not list((tmp_path / "results").rglob("requests.jsonl"))


class TakesThePort(pipeline.Quiet):
    """Takes the port when the second server is about to start."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.port, self.taken = port, socket.socket()

    def say(self, text: str) -> None:
        super().say(text)
        if text.startswith("b1-2") and "starting" in text:
            self.taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.taken.bind(("127.0.0.1", self.port))
            self.taken.listen()


def test_the_port_is_looked_at_before_every_start(tmp_path: Path, port: int) -> None:
    quiet = TakesThePort(port)
    with quiet.taken, pytest.raises(RunFailed, match=f"port {port} is in use"):
        run.run(pipeline.setup(pipeline.short(port), tmp_path / "results", tmp_path / "state"), quiet)
    assert len(quiet.trials) == 1


def test_a_server_that_runs_another_algorithm_ends_the_run(tmp_path: Path, port: int) -> None:
    wanted = pipeline.scenario(port, arms={"plain": Arm(env={"FAKE_ALGORITHM": "NGRAM"})})
    with pytest.raises(RunFailed, match="runs speculative-algorithm NGRAM, asked for was none"):
        run.run(pipeline.setup(wanted, tmp_path / "results", tmp_path / "state"), pipeline.Quiet())


def test_one_run_at_a_time_measures_on_a_machine(tmp_path: Path, port: int) -> None:
    ready = pipeline.setup(pipeline.scenario(port), tmp_path / "results", tmp_path / "state")
    with measuring(tmp_path / "lock"), pytest.raises(UnusableInput, match=rf"another run.*\(pid {os.getpid()}\)"):
        run.run(msgspec.structs.replace(ready, lock=tmp_path / "lock"), pipeline.Quiet())
    assert not (tmp_path / "results").exists()
    with measuring(tmp_path / "lock"):  # it was let go
        pass


def test_a_lock_that_cannot_be_held_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnusableInput, match="lock"), measuring(tmp_path / "lock"):
        pass


# ---- the folder -----------------------------------------------------------------------------------------------------


def begun(results: Path, **changes: object) -> tuple[Path, list[str]]:
    """Opens a run, freezes its workloads and leaves it there; its folder and what it said first."""
    wanted, quiet = pipeline.scenario(30000, **changes), pipeline.Quiet()
    ready = pipeline.setup(wanted, results, results / "state")
    with open_run(ready, False, quiet) as folder:
        freeze_all(ready, folder, plan.blocks(wanted), 1, {}, quiet)
    return folder, quiet.news


def test_an_unfinished_run_is_found_behind_another_variant(tmp_path: Path) -> None:
    first, news = begun(tmp_path)
    assert news[0] == f"new run {first.name}"
    other, _ = begun(tmp_path, arms={"plain": Arm()})
    again, news = begun(tmp_path)
    assert first == again != other
    assert news[0] == f"going on with run {first.name}: 0 trials are measured"


def test_a_run_of_another_engine_or_of_other_workloads_is_not_gone_on_with(tmp_path: Path) -> None:
    first, _ = begun(tmp_path)
    ready = pipeline.setup(pipeline.scenario(30000), tmp_path, tmp_path / "state")
    with open_run(msgspec.structs.replace(ready, like="another"), False, pipeline.Quiet()) as folder:
        assert folder != first


def test_a_run_that_records_nothing_leaves_no_folder(tmp_path: Path, port: int) -> None:
    def refuse(dataset: str, seed: int, requests: int, path: Path) -> measurements.WorkloadRecord:
        raise UnusableInput("no such data")

    ready = pipeline.setup(pipeline.scenario(port), tmp_path / "results", tmp_path / "state")
    with pytest.raises(UnusableInput, match="no such data"):
        run.run(msgspec.structs.replace(ready, freeze=refuse), pipeline.Quiet())
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize("place", ["results", "results/pipeline"])
def test_a_file_where_results_should_go_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    with pytest.raises(UnusableInput, match="no place for results"):
        begun(tmp_path / "results")


def wait_for(found: object, limit_s: float = 60) -> None:
    assert callable(found)
    end = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def marked(place: Path) -> dict[str, str]:
    """The environment of a runner and of all that it starts: a mark by which to find what is left of it."""
    return {**os.environ, "PIPELINE_TEST": str(place)}


def left_of(place: Path) -> list[str]:
    """Command lines of the processes that bear the mark."""
    left = []
    for entry in Path("/proc").iterdir():
        try:
            if f"PIPELINE_TEST={place}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                left.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return left


class OneMore:
    """A strategy that wants one more block of a new seed, and goes on with a finished run."""

    looks = 2
    extends = True

    def first(self, scenario: Scenario) -> tuple[plan.Block, ...]:
        return plan.blocks(scenario)

    def then(self, m: measurements.Measurements, blocks: tuple[plan.Block, ...]) -> plan.Block | None:
        if len(blocks) > 1:
            return None
        scenario = msgspec.convert(m.run.scenario, Scenario)
        return msgspec.structs.replace(plan.block(scenario, 2, plan.points(scenario)[:1], (7,)), look=2)


def test_a_finished_run_is_gone_on_with_by_a_strategy_that_wants_more(finished: Left, tmp_path: Path) -> None:
    ready, first = finished.copied(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in first.glob("sitting-1/*/*/complete")}
    assert run.run(ready, pipeline.Quiet(), OneMore()) == first
    m = measurements.read(first)
    assert before
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert len(m.trials) == 1 + 1
    assert {t.record.seed for t in m.trials} == {1, 7}
    assert m.run.looks_planned == 2
    assert not measurements.damage(first)
