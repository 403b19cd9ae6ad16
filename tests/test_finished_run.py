"""What a finished run leaves, and what can be done with it: one whole run, read by all tests of this file."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from kit import measurements, run
from kit.errors import UnusableInput
from kit.like import like
from kit.scenario import Model
from kit.setup import Choices, Folders, put_together
from tests import pipeline

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pipeline.Quiet]:
    home = tmp_path_factory.mktemp("finished")
    free = pipeline.free_port()
    quiet = pipeline.Quiet()
    wanted = pipeline.scenario(free)
    wanted = msgspec.structs.replace(wanted, sweep=msgspec.structs.replace(wanted.sweep, warmup_per_user=1))
    return run.run(pipeline.setup(wanted, home / "results", home / "state"), quiet), quiet


def test_a_run_leaves_what_the_design_names(finished: tuple[Path, pipeline.Quiet]) -> None:
    folder, quiet = finished
    assert quiet.expected == len(quiet.trials) == 3 * 2
    for place in ("run.json", "complete", "workloads/ids-s1.jsonl", "sitting-1/sitting.json"):
        assert (folder / place).is_file(), place
    legs = sorted(p.name for p in (folder / "sitting-1").iterdir() if p.is_dir())
    assert legs == ["b1-1-plain", "b1-2-eagle3", "b1-3-plain"]
    for leg in legs:
        for name in ("server.log", "server.json", "server_info.json"):
            assert (folder / "sitting-1" / leg / name).stat().st_size > 0


def test_the_records_are_whole(finished: tuple[Path, pipeline.Quiet]) -> None:
    m = measurements.read(finished[0])
    assert len(m.trials) == 6
    assert not m.incomplete
    for trial in m.trials:
        assert trial.record.void is None
        assert trial.record.flush.status == 200
        assert len(trial.requests) == trial.record.requests
        for request in trial.requests:
            assert request.error is None
            assert not request.warmup
            assert sum(tokens for _, tokens in request.chunks) == request.completion_tokens == pipeline.OUTPUT_LEN


def test_both_arms_replayed_the_same_bytes(finished: tuple[Path, pipeline.Quiet]) -> None:
    m = measurements.read(finished[0])
    assert len({t.record.workload_sha256 for t in m.trials}) == 1


def test_the_server_was_read_twice_over(finished: tuple[Path, pipeline.Quiet]) -> None:
    m = measurements.read(finished[0])
    by_arm = {record.arm: record.facts for _, record in m.servers}
    assert by_arm["plain"].pool_tokens == 24094
    assert by_arm["eagle3"].pool_tokens == 9951
    assert by_arm["eagle3"].max_running_requests == 48
    assert by_arm["eagle3"].cap_warning
    assert all(not facts.mismatches for facts in by_arm.values())


def test_results_name_no_folder_of_this_machine(finished: tuple[Path, pipeline.Quiet]) -> None:
    for path in finished[0].rglob("*"):
        if path.is_file():
            assert str(ROOT) not in path.read_text(errors="replace"), path.name


def test_a_servers_name_is_of_one_start_and_no_recorded_argument(finished: tuple[Path, pipeline.Quiet]) -> None:
    infos = [json.loads(p.read_text()) for p in finished[0].glob("sitting-1/*/server_info.json")]
    assert len({info["served_model_name"] for info in infos}) == len(infos) == 3
    assert not [s for _, s in measurements.read(finished[0]).servers if "--served-model-name" in s.argv]


# ---- faults of other tools, by their number --------------------------------------------------------------------------


def test_case_05_times_and_tokens_of_a_chunk_cannot_part(finished: tuple[Path, pipeline.Quiet]) -> None:
    for trial in measurements.read(finished[0]).trials:
        assert all(len(chunk) == 2 for r in trial.requests for chunk in r.chunks)


def test_case_23_the_clients_own_cpu_and_lag_are_recorded(finished: tuple[Path, pipeline.Quiet]) -> None:
    for trial in measurements.read(finished[0]).trials:
        assert trial.record.watch.cpu_share is not None
        assert trial.record.watch.lag_p99_s is not None


def test_case_32_the_flush_lies_before_the_first_request(finished: tuple[Path, pipeline.Quiet]) -> None:
    (log,) = finished[0].glob("sitting-1/b1-1-plain/server.log")
    steps = re.findall(r"Cache flushed|Prefill batch|Decode batch", log.read_text())
    assert steps.count("Cache flushed") == 2
    for trial in measurements.read(finished[0]).trials:
        assert trial.record.flush.status == 200
        assert all(r.cached_tokens == 0 for r in trial.requests)


def test_case_42_every_sampling_field_that_was_sent_is_recorded(finished: tuple[Path, pipeline.Quiet]) -> None:
    for trial in measurements.read(finished[0]).trials:
        assert trial.record.sampling == {"temperature": 0.0, "ignore_eos": True}


def test_case_48_what_the_server_counted_stands_beside_what_was_asked(finished: tuple[Path, pipeline.Quiet]) -> None:
    for trial in measurements.read(finished[0]).trials:
        assert {r.prompt_tokens for r in trial.requests} == {16}


def test_case_73_arguments_lengths_and_everything_else_are_written(finished: tuple[Path, pipeline.Quiet]) -> None:
    m = measurements.read(finished[0])
    assert all("--model-path" in server.argv for _, server in m.servers)
    assert m.run.scenario["sweep"]["seeds"] == [1]
    for path in finished[0].glob("sitting-1/*/*/requests.jsonl"):
        for line in path.read_text().splitlines():
            assert {"prompt_tokens", "completion_tokens", "chunks", "sent_s"} <= set(json.loads(line))


# ---- like a published run -------------------------------------------------------------------------------------------


def test_a_run_to_repeat_brings_the_engine_that_it_used(finished: tuple[Path, pipeline.Quiet], tmp_path: Path) -> None:
    origin = like(finished[0])
    assert origin.engine == "process"
    (tmp_path / "models" / "fake-model").mkdir(parents=True)
    (tmp_path / "models" / "fake-model" / "config.json").touch()
    wanted = pipeline.scenario(30000, model=Model(path="fake-model"), draft=None)
    here = [tmp_path / name for name in ("results", "models", "datasets", "cache")]
    places = Folders(root=tmp_path, results=here[0], models=here[1], datasets=here[2], cache=here[3])
    with pytest.raises(UnusableInput, match="the docker engine needs one"):
        put_together(wanted, places, Choices(), print, msgspec.structs.replace(origin, engine="docker"))


def test_a_run_to_repeat_of_a_newer_format_is_refused(finished: tuple[Path, pipeline.Quiet], tmp_path: Path) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "newer")
    (folder / "complete").unlink()
    record = measurements.read_record(folder / "run.json", measurements.RunRecord)
    newer = msgspec.structs.replace(record, format=measurements.FORMAT + 1)
    measurements.write_record(folder / "run.json", newer)
    with pytest.raises(UnusableInput, match="newer than this kit reads"):
        like(folder)
