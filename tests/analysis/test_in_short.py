"""The few lines that a reader takes away of each arm, and how the report writes them."""

from pathlib import Path

import msgspec
import pytest

from kit import figures, report, tables
from kit.analysis.in_short import in_short
from kit.analysis.metrics import METRICS
from kit.claims.found import Run
from kit.measurements import Measurements, TrialData
from kit.scenario import Scenario
from tests.analysis.shared import summarise
from tests.analysis.test_conditions import said
from tests.synthetic import ArmTruth, Truth, build, edited, with_record

TEMPLATES = Path(__file__).parents[2] / "templates"
ARMS = {
    "plain": ArmTruth(pool_tokens=24_094),
    "eagle3": ArmTruth(
        pool_tokens=9_951, max_running=48, cap_warning=True, draft=True, accept_length=2.7, speed=lambda c: 2.0
    ),
}


@pytest.fixture(scope="module")
def article() -> Measurements:
    """The article's two pools: twice as fast a token at every load, and 32 users who wait for 15 slots."""
    return build(Truth(arms=ARMS, concurrency=(1, 8, 32), noise=0.002, requests=40))


def lines(m: Measurements) -> list[str]:
    found = in_short(summarise(m))
    assert [(x.dataset, x.arm) for x in found] == [("own", "eagle3")]
    return found[0].lines


def test_each_fact_of_an_arm_is_a_line_with_its_numbers(article: Measurements) -> None:
    found = lines(article)
    assert found[0] == "Time per token (median): 0.50 times plain's at 1, 8 and 32 users; faster at every load."
    assert found[1].startswith("Output: ") and "times plain's at 8 users (" in found[1] and "32 users" in found[1]
    assert found[2].startswith("First token (median), where the pool holds requests back: ")
    assert "at 32 users (P99 " in found[2] and "8 users" not in found[2]
    assert found[3] == "Accept length: 2.60 tokens per step."
    assert found[4] == (
        "KV pool: 9,951 tokens, 59 % less than plain's 24,094; 15 requests of 640 tokens fit, 37 in plain's."
    )
    assert found[5] == ("Cap: 48 requests at a time (set by the server when speculation was turned on), plain 4,096.")


def test_what_was_forced_is_marked(article: Measurements) -> None:
    forced = said(article, "eagle3", max_total_tokens_asked=9_951, forced_accept_length=2.7)
    assert lines(forced)[3].endswith("tokens per step (forced).")
    assert lines(forced)[4].startswith("KV pool: 9,951 tokens (forced) against plain's 24,094;")


def test_without_pressure_the_highest_load_is_told() -> None:
    found = lines(build(Truth(concurrency=(1, 4), noise=0.002)))
    assert found[2].startswith("First token (median), neither pool nor cap binds: ") and "at 4 users" in found[2]


def test_the_report_shows_no_raw_tag_and_no_flattened_command(article: Measurements) -> None:
    m = said(article, "eagle3", load_format="dummy")
    run = Run(m, summarise(m), msgspec.convert(m.run.scenario, Scenario))
    found = report.markdown(run, TEMPLATES, figures.of_run(run.summary, run.records))
    assert [x.tag for x in METRICS if x.tag in found and x.tag not in ("retractions", "accept_length")] == []
    assert "1 users" not in found and "-0.00" not in found
    assert "Time per token (median): 0.50 times plain's" in found.partition("## Conditions")[0]
    assert "seen here: " in found.partition("### In short")[0]
    assert "\n```\npython -m sglang.launch_server\n```\n" in found


def test_a_number_is_never_minus_zero() -> None:
    assert (tables.number(-0.001), tables.number(-0.5), tables.number(-1234.567, 1)) == ("0.00", "-0.50", "-1,234.6")


def test_a_number_that_is_undecided_for_another_reason_than_its_interval_says_which() -> None:
    def lag(t: TrialData) -> TrialData:
        watch = msgspec.structs.replace(t.record.watch, lag_p99_s=0.9)
        return with_record(t, watch=watch) if t.record.concurrency == 4 else t

    found = lines(edited(build(Truth(concurrency=(1, 4), noise=0.002)), lag))
    assert "faster at 1 user, undecided at 4 users (the client's P99 lag is" in found[0]
    assert "undecided: the client's P99 lag is" in found[1]
