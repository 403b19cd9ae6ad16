import msgspec
import pytest

from kit.analysis.summary import Summary
from kit.measurements import SpecCounters
from tests.analysis.shared import summarise
from tests.synthetic import ArmTruth, Truth, build, edited, with_requests


def truth(speed: float = 1.5, accept: float = 2.7, **fields: object) -> Truth:
    arms = {"plain": ArmTruth(), "eagle3": ArmTruth(speed=speed, accept_length=accept, draft=True, **fields)}  # type: ignore[arg-type]
    return Truth(arms=arms, concurrency=(4, 16, 32))


def test_speed_up_is_accept_length_over_step_cost() -> None:
    for d in summarise(build(truth())).decompositions:
        assert d.tpot_gain == pytest.approx(d.accept_length / d.step_cost)
        assert d.tpot_gain == pytest.approx(1.5, rel=1e-6)
        assert d.step_cost == pytest.approx(d.step_ms / d.plain_step_ms)
        assert d.plain_concurrency == d.concurrency


def test_a_smaller_running_batch_is_set_beside_plain_with_the_same() -> None:
    """At 32 users only 15 run beside the draft, and plain runs as many at 16."""
    found = summarise(build(truth(pool_tokens=9_951))).decompositions
    at_32 = next(d for d in found if d.concurrency == 32)
    assert (at_32.running, at_32.plain_concurrency, at_32.plain_running) == (15.0, 16, 16.0)


def test_without_an_equal_batch_there_is_no_decomposition() -> None:
    found = summarise(build(truth(pool_tokens=5_200))).decompositions
    assert [d.concurrency for d in found] == [4]


@pytest.mark.parametrize(
    ("speed", "accept", "words"),
    [(1.5, 2.7, "it pays"), (0.9, 1.5, "too poor"), (0.6, 3.0, "too dear")],
)
def test_a_poor_draft_and_a_dear_verification_are_told_apart(speed: float, accept: float, words: str) -> None:
    assert all(words in d.text for d in summarise(build(truth(speed, accept))).decompositions)


def test_without_a_claim_there_are_only_the_numbers() -> None:
    noisy = msgspec.structs.replace(truth(1.1), noise=0.2)
    assert all("undecided" in d.text for d in summarise(build(noisy)).decompositions)


def test_case_62_both_arms_are_counted_by_the_server() -> None:
    """A decode step of plain is one token by the server's count, not by the client's chunks."""
    m = edited(build(truth()), lambda t: with_requests(t, lambda r: msgspec.structs.replace(r, completion_tokens=20)))
    plain_tokens = next(r for r in summarise(m).rows if r.arm == "plain").cells["completion_tokens"].value
    assert plain_tokens == 20
    assert summarise(m).decompositions[0].plain_step_ms == pytest.approx(20 * 39 / 19)


def test_without_verify_steps_there_is_no_decomposition() -> None:
    m = edited(build(truth()), lambda t: with_requests(t, lambda r: msgspec.structs.replace(r, spec=SpecCounters())))
    assert summarise(m).decompositions == []


def forced(cost: float, lengths: tuple[int, ...] = (1, 2, 3, 4)) -> Summary:
    arms = {"plain": ArmTruth()}
    for a in lengths:
        arms[f"forced{a}"] = ArmTruth(speed=a / cost, accept_length=float(a), forced_accept_length=float(a), draft=True)
    return summarise(build(Truth(arms=arms, concurrency=(8,), noise=0.002)))


def test_case_45_break_even_by_forced_acceptance() -> None:
    found = forced(1.7).break_evens
    assert [(b.fails_at, b.pays_from) for b in found] == [(1.0, 2.0)]
    assert found[0].cost_low == pytest.approx(1.7, rel=0.03) and found[0].cost_high == pytest.approx(1.7, rel=0.03)
    assert [x.accept_length for x in found[0].lengths] == [1, 2, 3, 4]
    assert "between 1 and 2" in found[0].text


def test_a_break_even_beyond_all_lengths_and_below_all() -> None:
    assert forced(6.0).break_evens[0].pays_from is None
    always = forced(0.9).break_evens[0]
    assert (always.pays_from, always.fails_at) == (1.0, None)


def test_one_forced_length_tells_no_break_even() -> None:
    assert forced(1.7, (3,)).break_evens == []


def test_case_61_identical_answers_are_a_share_and_no_failure() -> None:
    other = Truth(arms={"plain": ArmTruth(), "eagle3": ArmTruth(speed=1.5, accept_length=2.7, other_answers=True)})
    same, different = summarise(build(Truth())).twins[0], summarise(build(other)).twins[0]
    assert (same.identical, same.plain_identical, different.identical) == (1.0, 1.0, 0.0)
    assert (different.plain_identical, different.pairs) == (1.0, 48)


def test_answers_under_forced_acceptance_mean_nothing() -> None:
    assert {t.identical for t in forced(1.7).twins} == {None}


def test_the_share_of_requests_made_slower() -> None:
    m = edited(build(Truth()), lambda t: with_requests(
        t, lambda r: msgspec.structs.replace(r, done_s=(r.done_s or 0) + 99) if r.index % 4 == 0 else r
    ) if t.record.arm == "eagle3" else t)  # fmt: skip
    found = summarise(m).twins[0]
    assert (found.slower_e2e, found.slower_tpot) == (0.25, 0.0)
