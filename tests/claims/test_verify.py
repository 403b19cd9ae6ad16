"""The reviewer's verdict on folders: whole, damaged, against itself, against a twin that was moved."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.claims.verify import VerifyReport, verify
from kit.errors import UnusableInput
from kit.measurements import COMPLETE, Measurements, RequestRecord, TrialData
from kit.publish import publish
from kit.scenario import Claim
from tests.claims.folder import claimed, on_card, write
from tests.synthetic import Truth, build, edited, with_requests

CLAIMS = (
    Claim(id="seeds", text="three seeds", kind="condition", metric="seeds", value=3),
    Claim(id="accept", text="2.7 a step", kind="absolute", metric="accept_length", arm="eagle3", low=2.6, high=2.8),
    Claim(
        id="tpot", text="1.5 times shorter", kind="ratio", metric="tpot_p50_ms", arm="plain", against="eagle3",
        value=1.5, tolerance=0.05, reason="test",
    ),
)  # fmt: skip
TRUTH = Truth(noise=0.004, restart=0.004, concurrency=(1, 4))
RUN = claimed(on_card(build(TRUTH), "NVIDIA L4"), *CLAIMS)


def slower(trial: TrialData, factor: float) -> TrialData:
    """The trial with every moment later by the factor: its throughput falls, its times grow."""

    def change(r: RequestRecord) -> RequestRecord:
        times: dict[str, Any] = {
            name: None if (t := getattr(r, name)) is None else t * factor
            for name in ("scheduled_s", "sent_s", "first_text_s", "done_s")
        }
        return msgspec.structs.replace(r, chunks=[(t * factor, n) for t, n in r.chunks], **times)

    return with_requests(trial, change)


def failing(report: VerifyReport) -> set[tuple[str, str, str, int]]:
    return {(c.kind, c.metric, c.arm, c.concurrency) for c in report.compared if c.outcome != "holds"}


def test_a_finished_run_whose_claims_hold_ends_0(tmp_path: Path) -> None:
    report = verify(write(RUN, tmp_path / "run"))
    assert [c.outcome for c in report.claims] == ["holds"] * 3
    assert (report.judged, report.holding, report.exit_code) == (3, 3, 0)
    assert report.notes == [] and report.manifest_sha256 is None
    msgspec.json.encode(report)


def test_the_same_run_against_itself_holds_everywhere(tmp_path: Path) -> None:
    folder = write(RUN, tmp_path / "run")
    report = verify(folder, folder)
    assert report.differences == [] and len(report.compared) > 10
    assert failing(report) == set() and report.exit_code == 0
    assert [c.kind for c in report.compared] == sorted((c.kind for c in report.compared), reverse=True)


def test_a_twin_whose_one_ratio_is_shifted_by_a_tenth_fails(tmp_path: Path) -> None:
    def shift(t: TrialData) -> TrialData:
        return slower(t, 1.1) if (t.record.arm, t.record.concurrency) == ("eagle3", 4) else t

    report = verify(write(edited(RUN, shift), tmp_path / "twin"), write(RUN, tmp_path / "published"))
    assert report.exit_code == 1
    metrics = ("output_throughput_tok_s", "tpot_p50_ms", "ttft_p50_ms")
    assert failing(report) == {(kind, m, "eagle3", 4) for kind in ("ratio", "absolute") for m in metrics}
    assert all(
        c.outcome == "fails" for c in report.compared if (c.arm, c.concurrency) == ("eagle3", 4) and c.kind == "ratio"
    )


def test_a_rerun_within_the_publishers_spread_holds(tmp_path: Path) -> None:
    again = claimed(on_card(build(msgspec.structs.replace(TRUTH, draw=7)), "NVIDIA L4"), *CLAIMS)
    report = verify(write(again, tmp_path / "again"), write(RUN, tmp_path / "published"))
    assert report.exit_code == 0 and all(c.tolerance >= 0.03 - 1e-9 for c in report.compared)


def test_another_card_leaves_the_ratios_and_drops_the_absolutes(tmp_path: Path) -> None:
    other = on_card(RUN, "NVIDIA H200")
    report = verify(write(other, tmp_path / "other"), write(RUN, tmp_path / "published"))
    assert "card" in {d.what for d in report.differences}
    kinds = {c.outcome for c in report.compared if c.kind == "absolute" and c.metric != "accept_length"}
    assert kinds == {"not comparable"}
    assert {c.outcome for c in report.compared if c.kind == "ratio"} == {"holds"}


def test_another_workload_hash_is_listed_and_not_compared(tmp_path: Path) -> None:
    workloads = [
        msgspec.structs.replace(w, sha256=f"{w.sha256[:-1]}x") if w.seed == 2 else w for w in RUN.run.workloads
    ]
    other = msgspec.structs.replace(RUN, run=msgspec.structs.replace(RUN.run, workloads=workloads))
    report = verify(write(other, tmp_path / "other"), write(RUN, tmp_path / "published"))
    assert [d.what for d in report.differences] == ["workload own, seed 2"]
    assert {c.reason for c in report.compared} == {"another workload (seed 2)"}


def test_other_arguments_version_and_image_are_listed(tmp_path: Path) -> None:
    servers = [
        (n, msgspec.structs.replace(
            s, argv=[*s.argv, "--more"], facts=msgspec.structs.replace(s.facts, version="0.5.23")))
        for n, s in RUN.servers if s.arm == "eagle3"
    ]  # fmt: skip
    others = [x for x in RUN.servers if x[1].arm != "eagle3"]
    run = msgspec.structs.replace(RUN.run, image={"digest": "sha256:1"})
    other = msgspec.structs.replace(RUN, servers=[*servers, *others], run=run)
    report = verify(write(other, tmp_path / "other"), write(RUN, tmp_path / "published"))
    whats = [d.what for d in report.differences]
    assert whats == ["arguments of eagle3", "SGLang of eagle3", "image digest"]


def test_a_missing_seed_cannot_be_told_and_never_holds(tmp_path: Path) -> None:
    def drop(t: TrialData) -> TrialData | None:
        return None if (t.record.arm, t.record.seed) == ("eagle3", 3) else t

    folder = write(edited(RUN, drop), tmp_path / "run")
    report = verify(folder, write(RUN, tmp_path / "published"))
    assert {c.outcome for c in report.claims} == {"cannot tell"}
    assert {c.outcome for c in report.compared if c.arm == "eagle3"} == {"cannot tell"}
    assert report.exit_code == 1


def test_a_changed_record_is_named_and_unusable(tmp_path: Path) -> None:
    folder = write(RUN, tmp_path / "run")
    record = next(folder.glob("sitting-1/*eagle3*/*/requests.jsonl"))
    record.write_bytes(record.read_bytes().replace(b'"prompt_tokens":600', b'"prompt_tokens":599', 1))
    with pytest.raises(UnusableInput, match=r"run is damaged: .*requests.jsonl was changed after it was written"):
        verify(folder)
    with pytest.raises(UnusableInput, match="published is damaged"):
        verify(write(RUN, tmp_path / "whole"), folder.rename(tmp_path / "published"))


@pytest.mark.parametrize("name", ["run.json", "workloads/own-s1.jsonl", "sitting-1/b1-1-plain/server.log"])
def test_every_file_of_a_finished_run_is_sealed(tmp_path: Path, name: str) -> None:
    folder = write(RUN, tmp_path / "run")
    (folder / name).write_bytes((folder / name).read_bytes() + b"\n")
    with pytest.raises(UnusableInput, match=f"{name} was changed"):
        verify(folder)


def test_a_removed_and_an_added_trial_are_named(tmp_path: Path) -> None:
    folder = write(RUN, tmp_path / "run")
    trial = next(folder.glob(f"sitting-1/*/*/{COMPLETE}")).parent
    moved = trial.rename(trial.with_name("own-c0009-s1"))
    with pytest.raises(UnusableInput, match=f"{trial.name}/complete is missing; .*{moved.name} was added"):
        verify(folder)


def test_an_unfinished_run_is_read_and_said_to_be_so(tmp_path: Path) -> None:
    folder = write(RUN, tmp_path / "run", finished=False)
    (folder / "sitting-1" / "b1-1-plain" / "own-c0009-s1").mkdir()
    report = verify(folder)
    assert report.notes == [
        "the run is not finished: 18 of 18 trials measured; the same run command goes on",
        "1 trial begun and not completed, the first sitting-1/b1-1-plain/own-c0009-s1",
    ]
    assert {(c.outcome, c.reason) for c in report.claims} == {
        ("cannot tell", "the run is not finished: 18 of 18 trials measured")
    }
    assert report.exit_code == 1


def test_an_unfinished_run_never_ends_0(tmp_path: Path) -> None:
    def begin(t: TrialData) -> TrialData | None:
        return t if t.record.leg == "b1-1-plain" else None

    begun = write(edited(RUN, begin), tmp_path / "begun", finished=False)
    report = verify(begun)
    assert {c.reason for c in report.claims} == {"the run is not finished: 6 of 18 trials measured"}
    assert report.exit_code == 1
    whole = write(claimed(RUN), tmp_path / "whole", finished=False)
    same = verify(whole, whole)
    assert {c.outcome for c in same.compared} == {"holds"} and same.exit_code == 1


def test_a_copy_of_the_same_records_is_said_to_be_one(tmp_path: Path) -> None:
    run, note = write(RUN, tmp_path / "run"), "both are the same records"
    copy = publish(run, tmp_path / "copy", names={}).path
    assert note in verify(run, copy).notes and note in verify(copy, run).notes
    again = claimed(on_card(build(msgspec.structs.replace(TRUTH, draw=7)), "NVIDIA L4"), *CLAIMS)
    assert note not in verify(write(again, tmp_path / "again"), copy).notes


def test_binary_garbage_in_a_marker_or_manifest_is_damage_in_one_line(tmp_path: Path) -> None:
    copy = publish(write(RUN, tmp_path / "run"), tmp_path / "copy", names={}).path
    for name in ("sitting-1/b1-1-plain/own-c0001-s1/complete", "complete", "SHA256SUMS"):
        kept = (copy / name).read_bytes()
        for garbage in (b"\xff\xfe\x00garbage", b"no hash here", b"0" * 64 + b"  ../../elsewhere"):
            (copy / name).write_bytes(garbage)
            with pytest.raises(UnusableInput, match=f"copy is damaged: .*{name} holds no hashes") as caught:
                verify(copy)
            assert "\n" not in str(caught.value)
        (copy / name).write_bytes(kept)
    assert verify(copy).exit_code == 0


@pytest.mark.parametrize("name", ["sitting-x", "sitting-", "sitting-²"])
def test_a_folder_that_is_no_sitting_is_named(tmp_path: Path, name: str) -> None:
    folder = write(RUN, tmp_path / "run")
    (folder / name).mkdir()
    with pytest.raises(UnusableInput, match=f"^run/{name}: no folder of this kit"):
        verify(folder)


def test_a_file_in_place_of_a_sitting_is_named(tmp_path: Path) -> None:
    folder = write(RUN, tmp_path / "run")
    (folder / "sitting-2").write_text("x")
    with pytest.raises(UnusableInput, match="sitting-2/sitting.json: cannot be read: Not a directory"):
        verify(folder)


def test_nothing_judged_is_no_success(tmp_path: Path) -> None:
    far = [msgspec.structs.replace(c, card="NVIDIA H200") for c in CLAIMS]
    assert verify(write(claimed(RUN, *far), tmp_path / "run")).exit_code == 1


def test_runs_of_two_scenarios_are_not_compared(tmp_path: Path) -> None:
    other: Measurements = msgspec.structs.replace(
        RUN, run=msgspec.structs.replace(RUN.run, scenario={**RUN.run.scenario, "name": "other"})
    )
    with pytest.raises(UnusableInput, match="two scenarios .synthetic and other"):
        verify(write(RUN, tmp_path / "one"), write(other, tmp_path / "other"))


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="no run.json"):
        verify(tmp_path)
