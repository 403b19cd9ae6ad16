from collections.abc import Callable

import msgspec
import pytest

from kit.measurements import Measurements
from kit.scenario import Dataset, Slo
from kit.verdict import ChecklistItem, Value, Verdict, conclude
from tests.analysis.shared import summarise
from tests.analysis.test_conditions import said
from tests.synthetic import ArmTruth, Truth, build

LOADS = (1, 4, 8, 16, 32)


def truth(speed: Callable[[int], float] | float, **fields: object) -> Truth:
    known: dict[str, object] = {
        "arms": {"plain": ArmTruth(), "eagle3": ArmTruth(speed=speed, accept_length=2.7, draft=True)},
        "concurrency": LOADS,
        "noise": 0.003,
    }
    return Truth(**{**known, **fields})  # type: ignore[arg-type]


def verdict(m: Measurements, traffic: str = "batch", dataset: str = "own") -> Verdict:
    found = conclude(summarise(m)).verdicts
    return next(v for v in found if (v.traffic, v.dataset) == (traffic, dataset))


def item(m: Measurements, number: int) -> ChecklistItem:
    return conclude(summarise(m)).checklist[number - 1]


def cell(found: str | Value) -> Value:
    assert isinstance(found, Value)
    return found


def fades(users: int) -> float:
    """The article's shape: a gain with few users, a loss with many."""
    return {1: 2.0, 4: 1.8, 8: 1.5, 16: 0.9, 32: 0.8}[users]


def test_case_60_on_up_to_the_last_load_with_a_gain() -> None:
    found = verdict(build(truth(fades)))
    assert (found.says, found.up_to, found.flag) == ("on", 8, "--max-running-requests 8")
    assert found.condition == "up to 8 users; no gain from 16 on"
    assert found.crossover.kind == "bracket"
    assert any(r.startswith("16 users: output") for r in found.reasons)
    assert any("what limits it at 16 users: compute" in r for r in found.reasons)


def test_on_everywhere_and_off_everywhere() -> None:
    assert verdict(build(truth(1.5))).condition == "up to 32 users, the highest tested load"
    off = verdict(build(truth(0.8)))
    assert (off.says, off.up_to, off.flag) == ("off", None, None)


def test_a_gain_that_comes_back_cannot_be_told() -> None:
    found = verdict(build(truth(lambda c: 1.5 if c in (1, 32) else 0.8)))
    assert found.says == "cannot tell" and "not monotone" in found.condition


def test_too_much_noise_cannot_be_told() -> None:
    found = verdict(build(truth(1.05, noise=0.1)))
    assert found.says == "cannot tell"


def test_a_later_first_token_is_a_trade_without_limits() -> None:
    """The pool makes requests wait: tokens come faster, the first one later, and only the reader can weigh that."""
    arms = {"plain": ArmTruth(), "eagle3": ArmTruth(speed=1.6, accept_length=2.7, draft=True, pool_tokens=9_951)}
    m = build(truth(1.0, arms=arms))
    found = verdict(m, "interactive")
    assert (found.says, found.up_to) == ("on", 8)
    assert any("32 users: but the P99 first token" in r for r in found.reasons)
    assert "; at 16 and 32 users tokens come faster and the P99 first token later: set [slo]" in found.condition


def test_an_open_tail_stands_in_the_condition() -> None:
    m = build(truth(1.8, noise=0.03))
    assert "P99 first token comes later is undecided" in verdict(m, "interactive").condition
    assert "first token" not in verdict(m, "batch").condition


@pytest.mark.parametrize(("ttft_p99_s", "up_to"), [(9.0, 32), (0.5, 16)])
def test_with_limits_a_load_outside_them_is_no_load_to_serve(ttft_p99_s: float, up_to: int) -> None:
    arms = {"plain": ArmTruth(), "eagle3": ArmTruth(speed=1.6, accept_length=2.7, draft=True, pool_tokens=11_000)}
    found = verdict(build(truth(1.0, arms=arms, slo=Slo(ttft_p99_s=ttft_p99_s, tpot_p50_s=0.05))), "interactive")
    assert (found.says, found.up_to) == ("on", up_to)


@pytest.mark.parametrize(
    "facts", [{"device": "cpu"}, {"load_format": "dummy"}, {"forced_accept_length": 2.73}], ids=str
)
def test_case_16_a_rehearsal_is_neither_on_nor_off(facts: dict[str, object]) -> None:
    m = said(build(truth(fades)), "eagle3", **facts)
    found = conclude(summarise(m))
    assert {(v.says, v.flag) for v in found.verdicts} == {("rehearsal", None)}
    assert all(v.condition.startswith("seen here: gain up to 8 users; no gain from 16 on (") for v in found.verdicts)
    assert found.checklist[4].state == "cannot tell"
    assert not any("--max-running-requests" in line for i in found.checklist for line in i.next)


def test_case_50_random_prompts_get_no_verdict_beside_real_ones() -> None:
    datasets = {"random": Dataset(source="random"), "own": Dataset(source="prompts")}
    m = build(truth(fades, datasets=datasets))
    assert verdict(m, dataset="random").says == "rehearsal"
    assert verdict(m, dataset="own").says == "on"


def test_the_share_of_identical_answers_stands_beside_the_verdict() -> None:
    assert (verdict(build(truth(fades))).identical, verdict(build(truth(fades))).plain_identical) == (1.0, 1.0)


# ---- the checklist --------------------------------------------------------------------------------------------------


def test_five_points_with_numbers_and_states() -> None:
    found = conclude(summarise(build(truth(fades)))).checklist
    assert [i.number for i in found] == [1, 2, 3, 4, 5]
    assert all(i.text and i.figures and i.title for i in found)
    assert all(i.next for i in found if i.state == "act")


def test_point_1_compares_the_pools() -> None:
    arms = {"plain": ArmTruth(), "eagle3": ArmTruth(speed=1.5, accept_length=2.7, draft=True, pool_tokens=9_951)}
    found = item(build(truth(1.5, arms=arms)), 1)
    assert found.state == "act" and "9,951 tokens, 59 % less than plain" in found.text[0]
    assert found.figures[0].headings[1:3] == ["KV pool (tokens)", "less than plain's"]
    assert "15 requests fit, and the sweep goes to 32 users" in found.text[1]
    forced = item(said(build(truth(1.5, arms=arms)), "eagle3", max_total_tokens_asked=9_951), 1)
    assert [cell(row[1]).mark for row in forced.figures[0].rows] == ["", "forced"]
    assert "cannot be read" in forced.text[0]


def test_point_2_gives_the_flag_to_paste_until_it_is_set() -> None:
    m = build(truth(fades))
    found = item(m, 2)
    assert found.state == "act" and found.next[0].startswith("--max-running-requests 8")
    done = item(said(m, "eagle3", max_running_requests_asked=8), 2)
    assert (done.state, done.next) == ("done", [])


def test_point_3_wants_own_prompts_and_their_real_lengths() -> None:
    assert item(build(truth(fades)), 3).state == "act"
    real = {"own": Dataset(source="prompts", ignore_eos=False)}
    found = item(build(truth(fades, datasets=real)), 3)
    assert (found.state, found.next) == ("done", [])
    assert found.figures[0].headings == ["accept length of", "prompts", "1 user", *(f"{c} users" for c in LOADS[1:])]
    assert found.figures[0].rows[0][:2] == ["eagle3", "own"]
    assert all(cell(x).number == pytest.approx(2.65, abs=0.05) for x in found.figures[0].rows[0][2:])


def test_point_4_sets_p99_beside_the_median() -> None:
    found = item(build(truth(fades)), 4)
    headings, rows = found.figures[0].headings, found.figures[0].rows
    assert headings[3:7] == ["TTFT p50 (ms)", "TTFT p99 (ms)", "Longest gap p50 (ms)", "Longest gap p99 (ms)"]
    assert [row[:3] for row in rows[:2]] == [["own", "1 user", "plain"], ["own", "1 user", "eagle3"]]
    assert len(rows) == 2 * len(LOADS)
    assert {(cell(row[3]).mark, cell(row[4]).mark) for row in rows} == {("", "indicative")}
    assert found.state == "act"


def test_point_5_types_the_whole_arm() -> None:
    arm = ArmTruth(speed=fades, accept_length=2.7, draft=True, flags={"speculative-algorithm": "EAGLE3"})
    found = item(build(truth(1.0, arms={"plain": ArmTruth(), "eagle3": arm})), 5)
    assert found.state == "act"
    assert found.next[0].startswith(
        "--speculative-algorithm EAGLE3 --speculative-draft-model-path tests/draft --max-running-requests 8"
    )


def test_a_single_arm_has_a_checklist_that_cannot_tell() -> None:
    m = build(truth(1.0, arms={"plain": ArmTruth()}))
    found = conclude(summarise(m))
    assert found.verdicts == []
    assert {i.state for i in found.checklist} <= {"cannot tell", "act"}


def test_an_undecided_point_says_how_to_go_on() -> None:
    found = item(build(truth(1.04, noise=0.05)), 5)
    assert found.state == "cannot tell" and "--until-decided" in found.next[0]


def test_figures_carry_no_number_that_was_not_measured() -> None:
    m = build(truth(fades))
    silent = msgspec.structs.replace(m, servers=[])
    assert all(cell(x).number is not None for row in item(silent, 4).figures[0].rows for x in row[3:])
    assert item(silent, 1).figures == []
    assert conclude(summarise(silent)).in_short == []
