"""The whole summary: the same bytes again, and partial data without a crash."""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from kit.analysis.summary import Summary, summarise
from kit.errors import UnusableInput
from kit.measurements import LogCounts, Measurements, RequestRecord, ServerFacts, TrialData
from kit.scenario import Dataset, Slo
from kit.verdict import conclude
from tests.synthetic import ArmTruth, Truth, build, edited, with_record, with_requests

WIDE = Truth(
    arms={
        "plain": ArmTruth(),
        "eagle3": ArmTruth(speed=1.5, accept_length=2.7, draft=True, pool_tokens=9_951, max_running=48),
        "ngram": ArmTruth(speed=0.9, accept_length=1.1, algorithm="NGRAM", other_answers=True),
    },
    datasets={"random": Dataset(source="random", input_len=512, output_len=128), "own": Dataset(source="prompts")},
    concurrency=(1, 8, 24),
    noise=0.01,
    restart=0.005,
    slo=Slo(ttft_p99_s=2.0, tpot_p50_s=0.05),
)


@pytest.fixture(scope="module")
def wide() -> Measurements:
    return build(WIDE)


def both(m: Measurements) -> tuple[Summary, bytes]:
    summary = summarise(m)
    return summary, msgspec.json.encode((summary, conclude(summary)))


def test_the_same_measurements_give_the_same_bytes(wide: Measurements) -> None:
    assert both(wide)[1] == both(build(WIDE))[1]


def test_the_order_of_trials_does_not_matter(wide: Measurements) -> None:
    m = wide
    shuffled = [m.trials[i] for i in np.random.default_rng(0).permutation(len(m.trials))]
    assert both(msgspec.structs.replace(m, trials=shuffled))[1] == both(m)[1]


def test_rows_stand_in_the_scenarios_order(wide: Measurements) -> None:
    rows = summarise(wide).rows
    assert [(r.dataset, r.point.concurrency, r.arm) for r in rows[:4]] == [
        ("random", 1, "plain"), ("random", 1, "eagle3"), ("random", 1, "ngram"), ("random", 8, "plain"),
    ]  # fmt: skip
    assert len(rows) == 2 * 3 * 3
    assert rows[0].trials == 6 and len(rows[0].cells["tpot_p50_ms"].per_seed) == 6


def test_every_cell_names_a_metric_of_the_summary(wide: Measurements) -> None:
    summary = summarise(wide)
    tags = {m.tag for m in summary.metrics}
    assert all(set(r.cells) <= tags for r in summary.rows)


def test_quantiles_of_dependent_values_have_no_interval(wide: Measurements) -> None:
    cells = summarise(wide).rows[0].cells
    assert cells["ttft_p99_ms"].quantile is not None
    assert cells["gap_pooled_p99_ms"].quantile is None and cells["itl_sglang_p99_ms"].quantile is None


def test_an_open_loop_point_is_a_row_and_no_crossover() -> None:
    summary = summarise(build(Truth(rates=(2.0,))))
    assert "2 req/s" in {r.load for r in summary.rows}
    assert all("0" not in c.states for c in summary.crossovers)


def test_a_scenario_that_cannot_be_read_is_named() -> None:
    m = build(Truth())
    broken = msgspec.structs.replace(m, run=msgspec.structs.replace(m.run, scenario={"title": 3}))
    with pytest.raises(UnusableInput, match=r"run\.json: the recorded scenario"):
        summarise(broken)


def strip(r: RequestRecord) -> RequestRecord:
    return msgspec.structs.replace(
        r, sent_s=None, first_text_s=None, done_s=None, prompt_tokens=None, completion_tokens=None, spec=None,
        output_sha256=None, cached_tokens=None, retractions=None,
    )  # fmt: skip


def one_chunk(r: RequestRecord) -> RequestRecord:
    return msgspec.structs.replace(r, chunks=r.chunks[:1])


def no_chunks(r: RequestRecord) -> RequestRecord:
    return msgspec.structs.replace(r, chunks=[])


CUTS: dict[str, Callable[[TrialData], TrialData | None]] = {
    "no trial at all": lambda t: None,
    "only plain": lambda t: t if t.record.arm == "plain" else None,
    "only speculation": lambda t: t if t.record.arm != "plain" else None,
    "only the first leg": lambda t: t if "-1-" in t.record.leg else None,
    "one seed": lambda t: t if t.record.seed == 1 else None,
    "seeds that do not pair": lambda t: t if (t.record.seed == 1) == (t.record.arm == "plain") else None,
    "one load each": lambda t: t if (t.record.concurrency == 1) == (t.record.arm == "plain") else None,
    "no request": lambda t: msgspec.structs.replace(t, requests=[]),
    "no chunk": lambda t: with_requests(t, no_chunks),
    "one chunk each": lambda t: with_requests(t, one_chunk),
    "nothing but chunks": lambda t: with_requests(t, strip),
    "a silent log": lambda t: with_record(t, log=LogCounts()),
    "all void": lambda t: with_record(t, void="the client gave up: no answer"),
    "no drafts counted": lambda t: with_requests(t, lambda r: msgspec.structs.replace(r, spec=None)),
}


@pytest.mark.parametrize("cut", CUTS, ids=lambda c: c)
def test_partial_data_gives_less_and_never_a_crash(cut: str, wide: Measurements) -> None:
    summary, _ = both(edited(wide, CUTS[cut]))
    conclusion = conclude(summary)
    assert len(conclusion.checklist) == 5
    if cut not in ("a silent log", "no drafts counted", "one chunk each"):
        assert {v.says for v in conclusion.verdicts} <= {"cannot tell", "rehearsal"}


def test_servers_that_said_nothing_are_no_crash(wide: Measurements) -> None:
    m = wide
    silent = [(n, msgspec.structs.replace(s, facts=ServerFacts())) for n, s in m.servers]
    summary, _ = both(msgspec.structs.replace(m, servers=silent))
    assert summary.conditions[0].pool_tokens is None and summary.conditions[0].fits == []
    assert conclude(summary).checklist[0].state == "cannot tell"


def test_no_server_at_all_is_no_crash(wide: Measurements) -> None:
    summary, _ = both(msgspec.structs.replace(wide, servers=[], trials=[]))
    assert (summary.conditions, summary.rows, summary.pressures) == ([], [], [])


def test_random_holes_are_no_crash(wide: Measurements) -> None:
    m, rng = wide, np.random.default_rng(5)
    for share in (0.2, 0.5, 0.8):
        both(edited(m, lambda t, share=share: None if rng.random() < share else t))  # type: ignore[misc]
