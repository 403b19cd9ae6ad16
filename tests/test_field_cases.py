"""Faults that users reported in other tools (by their number in our list): each that applies is a test somewhere.

Cases that another file covers carry their number in the test's name there; the ones about a whole run stand here.
"""

import json
import re
from pathlib import Path

import pytest

from kit import measurements, run
from tests import pipeline
from tests.test_run import free_port

LISTED = [
    1, 2, 3, 5, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 32, 33, 34, 35, 37, 38, 39,
    40, 41, 42, 44, 45, 46, 47, 48, 50, 51, 52, 53, 54, 55, 56, 57, 60, 61, 62, 63, 65, 66, 67, 69, 70, 71, 73, 74, 75,
]  # fmt: skip
WHY_NOT = {
    26: "handing over from warm-up to measurement without a drain: the flush that every trial needs wants an idle "
    "server; the opening burst is the same in all arms, and its requests are part of what a user at that load sees",
    40: "two tools that disagree on one model: nothing to test, but every report states formula, bonus token, "
    "template and temperature of its accept length (test_case_09 reads the definitions)",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("cases")
    wanted = pipeline.scenario(free_port())
    return run.run(pipeline.setup(wanted, home / "results", home / "state"), pipeline.Quiet())


def test_every_listed_case_is_a_test_or_has_a_reason() -> None:
    names = re.findall(
        r"def test_cases?_([\d_and]+)_", "".join(p.read_text() for p in Path(__file__).parent.rglob("test_*.py"))
    )
    tested = {int(number) for name in names for number in re.findall(r"\d+", name)}
    assert sorted(tested | set(WHY_NOT)) == LISTED
    assert not tested & set(WHY_NOT)


def test_case_05_times_and_tokens_of_a_chunk_cannot_part(folder: Path) -> None:
    for trial in measurements.read(folder).trials:
        assert all(len(chunk) == 2 for r in trial.requests for chunk in r.chunks)


def test_case_23_the_clients_own_cpu_and_lag_are_recorded(folder: Path) -> None:
    for trial in measurements.read(folder).trials:
        assert trial.record.watch.cpu_share is not None
        assert trial.record.watch.lag_p99_s is not None


def test_case_32_the_flush_lies_before_the_first_request(folder: Path) -> None:
    (log,) = folder.glob("sitting-1/b1-1-plain/server.log")
    steps = re.findall(r"Cache flushed|Prefill batch|Decode batch", log.read_text())
    assert steps.count("Cache flushed") == 2
    for trial in measurements.read(folder).trials:
        assert trial.record.flush.status == 200
        assert all(r.cached_tokens == 0 for r in trial.requests)


def test_case_33_storage_that_survives_a_flush_is_refused() -> None:
    from kit.errors import UnusableInput
    from kit.scenario import Arm
    from kit.sglang import launch

    wanted = pipeline.scenario(30000, arms={"plain": Arm(flags={"hicache-storage-backend": "file"})})
    with pytest.raises(UnusableInput, match="outlives the flush"):
        launch.arguments(wanted, "plain", Path("m"), None, 30000)


def test_case_42_every_sampling_field_that_was_sent_is_recorded(folder: Path) -> None:
    for trial in measurements.read(folder).trials:
        assert trial.record.sampling == {"temperature": 0.0, "ignore_eos": True}


def test_case_48_what_the_server_counted_stands_beside_what_was_asked(folder: Path) -> None:
    for trial in measurements.read(folder).trials:
        assert {r.prompt_tokens for r in trial.requests} == {16}


def test_case_73_arguments_lengths_and_everything_else_are_written(folder: Path) -> None:
    m = measurements.read(folder)
    assert all("--model-path" in server.argv for _, server in m.servers)
    assert m.run.scenario["sweep"]["seeds"] == [1]
    for path in folder.glob("sitting-1/*/*/requests.jsonl"):
        for line in path.read_text().splitlines():
            assert {"prompt_tokens", "completion_tokens", "chunks", "sent_s"} <= set(json.loads(line))
