import msgspec
import pytest

from kit.scenario import Dataset, Slo
from tests.analysis.shared import summarise
from tests.synthetic import ArmTruth, Truth, build

SETS = Truth(
    arms={"plain": ArmTruth(), "eagle3": ArmTruth(accept_length=2.7)},
    datasets={
        "random": Dataset(source="random"),
        "own": Dataset(source="prompts", path="a.jsonl"),
        "own-eos": Dataset(source="prompts", path="a.jsonl", ignore_eos=False),
    },
    speeds={("eagle3", "random"): 1.5, ("eagle3", "own"): 1.25, ("eagle3", "own-eos"): 1.2},
    concurrency=(8,),
    prefill_s=0.0,
)


def test_the_bias_is_the_ratio_of_two_ratios() -> None:
    found = {(b.kind, b.over, b.under): b for b in summarise(build(SETS)).biases if b.metric == "tpot_p50_ms"}
    assert {k: b.factor for k, b in found.items()} == pytest.approx(
        {
            ("random prompts", "random", "own"): 1.2,
            ("random prompts", "random", "own-eos"): 1.25,
            ("ignored end token", "own", "own-eos"): 1.25 / 1.2,
        }
    )


def test_the_interval_of_the_bias_holds_the_truth() -> None:
    found = summarise(build(msgspec.structs.replace(SETS, noise=0.01, seeds=(1, 2, 3, 4, 5)))).biases
    assert all(b.low is not None and b.high is not None and b.low < b.factor < b.high for b in found)
    assert any((b.low or 0) < 1.2 < (b.high or 0) for b in found if b.metric == "tpot_p50_ms" and b.under == "own")


def test_one_data_set_has_no_bias() -> None:
    assert summarise(build(Truth())).biases == []


LIMITS = Slo(ttft_p99_s=2.0, tpot_p50_s=0.025)


def objective(arm: str, **fields: object) -> tuple[int | None, str]:
    truth = Truth(
        arms={"plain": ArmTruth(), "eagle3": ArmTruth(speed=1.5, accept_length=2.7, pool_tokens=9_951)}, slo=LIMITS
    )
    found = summarise(build(msgspec.structs.replace(truth, **fields))).objectives
    one = next(o for o in found if o.arm == arm)
    return one.highest, one.text


def test_the_highest_load_within_the_limits() -> None:
    assert objective("plain")[0] == 32
    assert objective("eagle3", slo=Slo(ttft_p99_s=0.5, tpot_p50_s=0.025))[0] == 8
    assert objective("plain", slo=Slo(ttft_p99_s=2.0, tpot_p50_s=0.01)) == (None, "at no tested load within")


def test_without_limits_there_are_no_objectives() -> None:
    assert summarise(build(Truth())).objectives == []


def test_a_p99_of_few_requests_is_indicative_there_too() -> None:
    found = summarise(build(Truth(slo=LIMITS))).objectives[0]
    assert found.indicative and found.output_throughput_tok_s and found.joules_per_token is None
