"""Each doubt, with the field case it stands for; and a clean run without any that matters."""

from collections.abc import Callable

import msgspec
import pytest

from kit.analysis.doubt import Doubt
from kit.measurements import (
    Flush,
    GpuSample,
    LockRecord,
    Measurements,
    RequestError,
    RequestRecord,
    SelfTest,
    TrialData,
)
from kit.scenario import Dataset, Sweep
from tests.analysis.shared import summarise
from tests.analysis.test_conditions import ARTICLE, said
from tests.synthetic import ArmTruth, Truth, build, edited, with_record, with_requests


def doubts(m: Measurements, tag: str) -> list[Doubt]:
    return [d for d in summarise(m).doubts if d.tag == tag]


def changed(change: Callable[[RequestRecord], RequestRecord], arm: str = "eagle3") -> Measurements:
    """A run whose requests of one arm went through `change`."""
    return edited(build(Truth(noise=0.005)), lambda t: with_requests(t, change) if t.record.arm == arm else t)


def with_scenario(m: Measurements, **tables: object) -> Measurements:
    scenario = {**m.run.scenario, **{k: msgspec.to_builtins(v) for k, v in tables.items()}}
    return msgspec.structs.replace(m, run=msgspec.structs.replace(m.run, scenario=scenario))


def test_a_clean_run_has_only_notes() -> None:
    clean = Truth(noise=0.003, requests=120)
    assert [d.tag for d in summarise(build(clean)).doubts if d.severity != "note"] == []


def test_severe_doubts_come_first_and_every_one_has_advice() -> None:
    found = summarise(edited(build(Truth()), lambda t: with_record(t, flush=Flush(tries=3, status=400, seconds=1))))
    ranks = [("severe", "warning", "note").index(d.severity) for d in found.doubts]
    assert ranks == sorted(ranks)
    assert all(d.advice and d.text and d.subject for d in found.doubts)


def test_few_samples_behind_a_p99() -> None:
    found = doubts(build(Truth()), "few-samples")
    assert [(d.number, d.limit) for d in found] == [(48, 299)]
    assert doubts(build(Truth(requests=120)), "few-samples") == []


def test_answers_of_one_length_keep_the_users_in_step() -> None:
    def spread(r: RequestRecord) -> RequestRecord:
        return msgspec.structs.replace(r, sent_s=0.37 * r.index, done_s=0.37 * r.index + 1.0)

    assert [(d.subject, d.number, d.severity) for d in doubts(build(Truth()), "in-step")] == [
        ("plain on own", 1.0, "note"),
        ("eagle3 on own", 1.0, "note"),
    ]
    assert [d.subject for d in doubts(changed(spread), "in-step")] == ["plain on own"]


def test_case_30_cached_tokens_beyond_what_the_workload_shares() -> None:
    m = changed(lambda r: msgspec.structs.replace(r, cached_tokens=100))
    found = doubts(m, "cached-tokens")
    assert [d.subject for d in found] == ["eagle3 on own"]
    assert found[0].number == pytest.approx(100 / 600) and found[0].severity == "severe"
    shared = [msgspec.structs.replace(w, shared_prefix_tokens=16 * 100) for w in m.run.workloads]
    assert doubts(msgspec.structs.replace(m, run=msgspec.structs.replace(m.run, workloads=shared)), found[0].tag) == []


def test_case_29_a_flush_that_failed() -> None:
    m = edited(build(Truth()), lambda t: with_record(t, flush=Flush(tries=9, status=400, seconds=9.0)))
    assert [d.number for d in doubts(m, "flush")] == [27]


def test_case_14_errors_within_the_limit_are_shown() -> None:
    m = build(Truth(requests=120))

    def one_fails(t: TrialData) -> TrialData:
        bad = msgspec.structs.replace(t.requests[0], error=RequestError(kind="reset", detail=""), chunks=[])
        return msgspec.structs.replace(t, requests=[bad, *t.requests[1:]])

    assert [d.number for d in doubts(edited(m, one_fails), "errors")] == pytest.approx([1 / 120] * 2)


def test_case_14_and_53_a_trial_with_too_many_failures_is_void() -> None:
    fail = RequestError(kind="http_status", detail="503", status=503)
    m = changed(lambda r: msgspec.structs.replace(r, error=fail, chunks=[]))
    found = doubts(m, "void-trial")
    assert len(found) == 9 and "http_status" in found[0].text and found[0].number == 1.0


def test_void_and_incomplete_trials_are_named() -> None:
    m = edited(build(Truth()), lambda t: with_record(t, void="the card failed: lost") if t.record.seed == 3 else t)
    m = msgspec.structs.replace(m, incomplete=["sitting-1/b1-3-plain/own-c0001-s1"])
    assert len(doubts(m, "void-trial")) == 9
    assert doubts(m, "incomplete")[0].number == 1


def test_an_accept_length_below_1_2() -> None:
    poor = Truth(arms={"plain": ArmTruth(), "ngram": ArmTruth(accept_length=1.1, algorithm="NGRAM")})
    assert [d.subject for d in doubts(build(poor), "small-accept-length")] == ["ngram on own"]


def test_an_accept_length_that_was_forced_is_no_doubt() -> None:
    poor = ArmTruth(accept_length=1.0, forced_accept_length=1.0, draft=True)
    assert doubts(build(Truth(arms={"plain": ArmTruth(), "forced1": poor})), "small-accept-length") == []


def test_case_37_no_counters_is_no_accept_length() -> None:
    m = changed(lambda r: msgspec.structs.replace(r, spec=None))
    assert [d.subject for d in doubts(m, "no-accept-length")] == ["eagle3"]
    assert doubts(m, "small-accept-length") == []


def test_case_35_the_servers_own_accept_length_may_be_another_ranks() -> None:
    m = edited(build(Truth()), lambda t: with_record(t, avg_spec_accept_length=4.0))
    assert [d.subject for d in doubts(m, "accept-length-differs")] == ["eagle3"]


@pytest.mark.parametrize("fields", [{"prompt_tokens": 580}, {"completion_tokens": 30}])
def test_case_47_realised_lengths_off_what_was_asked(fields: dict[str, int]) -> None:
    truth = Truth(datasets={"random": Dataset(source="random", input_len=600, output_len=40)})
    tag = "prompt-length" if "prompt_tokens" in fields else "answer-length"
    m = build(truth)
    assert doubts(m, tag) == []
    short = edited(m, lambda t: with_requests(t, lambda r: msgspec.structs.replace(r, **fields)))
    assert len(doubts(short, tag)) == 2


NGRAM = {"plain": ArmTruth(), "ngram": ArmTruth(accept_length=3.0, algorithm="NGRAM")}


def poorer(m: Measurements, steps: int, when: Callable[[TrialData], bool]) -> Measurements:
    """The NGRAM arm's requests with further verify steps in some trials."""

    def change(r: RequestRecord) -> RequestRecord:
        spec = msgspec.structs.replace(r.spec, verify_steps=(r.spec.verify_steps or 0) + steps) if r.spec else None
        return msgspec.structs.replace(r, spec=spec)

    return edited(m, lambda t: with_requests(t, change) if when(t) else t)


def test_case_34_ngram_state_that_leaks_into_later_trials() -> None:
    m = build(Truth(arms=NGRAM))
    assert doubts(m, "drafts-moved") == []
    found = doubts(poorer(m, 7, lambda t: t.record.concurrency == 32), "drafts-moved")
    assert [(d.subject, d.severity) for d in found] == [("ngram on own", "warning")]
    assert (
        found[0].number == pytest.approx(1 - 13 / 20)
        and "first (at 1 user) and 1.95 later (at 32 users)" in found[0].text
    )


def test_case_34_the_same_order_repeated_twice_is_compared() -> None:
    m = build(Truth(arms=NGRAM, blocks=2))
    assert doubts(m, "drafts-moved") == []
    found = doubts(poorer(m, 7, lambda t: t.record.leg.startswith("b2-")), "drafts-moved")
    assert len(found) == 1 and "again at" in found[0].text


def test_case_34_answers_that_differ_or_drafts_that_were_forced_are_not_compared() -> None:
    other = build(Truth(arms=NGRAM))
    changed = edited(
        poorer(other, 7, lambda t: t.record.concurrency == 32),
        lambda t: with_requests(t, lambda r: msgspec.structs.replace(r, output_sha256=f"{t.record.trial} {r.index}")),
    )
    assert doubts(changed, "drafts-moved") == []
    forced = said(poorer(other, 7, lambda t: t.record.concurrency == 32), "ngram", forced_accept_length=3.0)
    assert doubts(forced, "drafts-moved") == []


def test_case_46_a_range_ratio_asks_for_other_means() -> None:
    data = {"random": Dataset(source="random", input_len=1200, output_len=80, range_ratio=0.0)}
    assert doubts(build(Truth(datasets=data)), "prompt-length") == []


def test_real_answer_lengths_are_not_compared_with_a_limit() -> None:
    data = {"own": Dataset(source="prompts", output_len=4096, ignore_eos=False)}
    assert doubts(build(Truth(datasets=data)), "answer-length") == []


def test_case_57_a_sweep_beyond_the_cap() -> None:
    m = build(msgspec.structs.replace(ARTICLE, concurrency=(8, 64)))
    found = doubts(m, "beyond-cap")
    assert [(d.subject, d.number, d.limit) for d in found] == [("eagle3", 64, 48)]
    assert doubts(build(ARTICLE), "beyond-cap") == []


def test_case_28_kernels_compiled_during_a_trial() -> None:
    def compiled(t: TrialData) -> TrialData:
        log = msgspec.structs.replace(t.record.log, compiled=t.record.concurrency == 8)
        return with_record(t, log=log)

    found = doubts(edited(build(Truth()), compiled), "compiled")
    assert len(found) == 2 and "8 users" in found[0].text


def test_retractions_are_told() -> None:
    m = changed(lambda r: msgspec.structs.replace(r, retractions=1))
    assert [d.number for d in doubts(m, "retractions")] == [32]


def test_case_21_a_p99_far_above_its_median() -> None:
    def late(r: RequestRecord) -> RequestRecord:
        return msgspec.structs.replace(r, sent_s=(r.sent_s or 0) - 5.0) if r.index == 0 else r

    found = doubts(changed(late), "long-tail")
    assert found and (found[0].number or 0) > 5


def test_answers_in_one_chunk() -> None:
    m = changed(lambda r: msgspec.structs.replace(r, chunks=[(r.chunks[0][0], 40)]))
    assert [d.number for d in doubts(m, "one-chunk-answers")] == [1.0]


def test_case_10_no_usage() -> None:
    assert [d.number for d in doubts(changed(lambda r: msgspec.structs.replace(r, completion_tokens=None)), "no-usage")]


def test_case_15_chunks_that_do_not_add_up_to_the_servers_count() -> None:
    m = changed(lambda r: msgspec.structs.replace(r, completion_tokens=20))
    assert [d.number for d in doubts(m, "token-counts")] == [1.0]


def test_case_20_an_open_loop_that_could_not_keep_up() -> None:
    m = build(Truth(rates=(2.0,)))
    late = edited(m, lambda t: with_requests(t, lambda r: msgspec.structs.replace(r, scheduled_s=(r.sent_s or 0) - 1)))
    assert doubts(m, "late-sending") == []
    assert len(doubts(late, "late-sending")) == 2


def test_case_22_more_chunks_than_the_client_is_trusted_with() -> None:
    m = build(Truth())
    test = SelfTest(ttft_error_p99_s=0.001, gap_error_p99_s=0.001, trusted_chunks_per_s=10)
    slow = msgspec.structs.replace(m, sittings=[msgspec.structs.replace(s, selftest=test) for s in m.sittings])
    assert doubts(slow, "chunk-rate") and not doubts(m, "chunk-rate")


def test_case_51_other_prompts_under_the_same_seed() -> None:
    m = edited(build(Truth()), lambda t: with_record(t, workload_sha256=t.record.arm))
    assert len(doubts(m, "other-prompts")) == 3


def test_case_65_an_unknown_version_and_facts_that_disagree() -> None:
    m = said(build(ARTICLE), "eagle3", unknown_version=True, mismatches=["pool tokens: 9951 and 9952"])
    assert [d.subject for d in doubts(m, "unknown-version")] == ["eagle3"]
    assert "9952" in doubts(m, "log-info-mismatch")[0].text


def test_an_image_without_a_digest() -> None:
    m = build(Truth())
    assert doubts(msgspec.structs.replace(m, run=msgspec.structs.replace(m.run, unpinned=True)), "unpinned-image")


def test_case_25_no_warm_up() -> None:
    sweep = Sweep(concurrency=[1, 8, 32], seeds=[1, 2, 3], warmup_per_user=0)
    assert doubts(with_scenario(build(Truth()), sweep=sweep), "no-warm-up")


def test_case_70_throttling_and_a_lock_that_did_not_hold() -> None:
    m = build(Truth())
    samples = [
        GpuSample(monotonic_s=0.1 * i, index=0, sm_clock_mhz=1500, reasons=0x4, utilisation=1.0, power_w=70.0)
        for i in range(400)
    ]
    lock = LockRecord(asked="required", asked_mhz=900, set_mhz=900, state="locked")
    hot = edited(m, lambda t: msgspec.structs.replace(t, gpu=samples))
    hot = msgspec.structs.replace(hot, sittings=[msgspec.structs.replace(s, lock=lock) for s in hot.sittings])
    found = summarise(hot)
    assert {"lock-not-held", "power-throttled"} <= {d.tag for d in found.doubts}
    cards = found.conditions[0].cards
    assert cards is not None and (cards.sm_clock_mhz, cards.held_share) == (1500, 0)
    assert "joules_per_token" in found.rows[0].cells


def test_case_74_undecided_points_say_how_many_more_seeds() -> None:
    truth = Truth(arms={"plain": ArmTruth(), "eagle3": ArmTruth(speed=1.05, accept_length=2.0)}, noise=0.03, draw=2)
    found = doubts(build(truth), "undecided")
    assert found and all((d.number or 0) >= 1 for d in found)
    assert all("undecided; " in d.text and " likely to settle " in d.text for d in found)
    assert not any("metric" in d.subject or "_ms" in d.subject or "tok_s" in d.subject for d in found)
