from pathlib import Path

import pytest

from kit.forecast.shapes import Facts, Shape, count, precision, read_facts
from kit.scenario import Arm, Dataset, Image, Model, Scenario, Server, Sweep

CAPTURES = Path(__file__).parents[3] / "shared" / "captures" / "h200"

EAGLE3 = {
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}


def shape_of(model_id: str, **flags: str) -> Shape:
    facts = read_facts(model_id, None)
    return count(facts.config, precision(facts.config, flags, flags.get("quantization")))


def facts_of(model_id: str) -> Facts:
    return read_facts(model_id, None)


def l4(fraction: float | None = 0.85, sglang: str = "0.5.17", **server: bool | int | float | str) -> Scenario:
    """The article's L4 sweep as far as memory goes."""
    flags = {k.replace("_", "-"): v for k, v in server.items()}
    if fraction is not None:
        flags["mem-fraction-static"] = fraction
    return Scenario(
        name="l4-eagle3",
        title="L4",
        question="?",
        engine="docker",
        model=Model(path="Qwen/Qwen3-8B"),
        draft=Model(path="Tengyunw/qwen3_8b_eagle3"),
        server=Server(flags=flags),
        arms={
            "plain": Arm(),
            "eagle3": Arm(draft=True, flags=EAGLE3),
            "ngram": Arm(flags={"speculative-algorithm": "NGRAM"}),
        },
        datasets={
            "random": Dataset(source="random", input_len=512, output_len=128),
            "sharegpt": Dataset(source="sharegpt"),
        },
        sweep=Sweep(concurrency=[1, 32], seeds=[1]),
        image=Image(ref="lmsysorg/sglang:x@sha256:0", sglang=sglang),
    )


@pytest.fixture
def captures() -> Path:
    if not CAPTURES.is_dir():
        pytest.skip("the H200 captures of ../shared are not here: the logged pools cannot be compared")
    return CAPTURES
