"""Draws against what SGLang 0.5.23's own client drew from the same file with the same tokenizer and seed.

`sglang-0.5.23-drawn.json` was made with `sample_random_requests` and `sample_sharegpt_requests` of that wheel.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from kit import workload
from kit.scenario import Dataset

HERE = Path(__file__).parent
DRAWN: dict[str, list[dict[str, Any]]] = json.loads((HERE / "sglang-0.5.23-drawn.json").read_text())
CONTEXT = workload.Context(datasets=HERE, tokenizer=HERE / "model", base=HERE)

CASES = {
    "random": Dataset(source="random", input_len=32, output_len=8, path="sharegpt.json"),
    "random-ratio": Dataset(source="random", input_len=40, output_len=16, range_ratio=0.25, path="sharegpt.json"),
    "random-ids": Dataset(source="random-ids", input_len=12, output_len=8, range_ratio=0.5),
    "sharegpt": Dataset(source="sharegpt", path="sharegpt.json"),
}


@pytest.mark.parametrize("seed", [1, 42])
@pytest.mark.parametrize("case", CASES)
def test_same_prompts_lengths_and_order(case: str, seed: int) -> None:
    expected = DRAWN[f"{case}-{seed}"]
    lines = workload.freeze("x", CASES[case], seed, len(expected), CONTEXT).lines
    assert [line.text if line.input_ids is None else line.input_ids for line in lines] == [
        e["prompt"] for e in expected
    ]
    assert [line.input_len for line in lines] == [e["prompt_len"] for e in expected]
    assert [line.output_len for line in lines] == [e["output_len"] for e in expected]


@pytest.mark.parametrize("seed", [1, 42])
def test_same_drops_for_the_context(seed: int) -> None:
    expected = DRAWN[f"sharegpt-context-{seed}"]
    context = workload.Context(datasets=HERE, tokenizer=HERE / "model", base=HERE, context_tokens=100)
    dataset = Dataset(source="sharegpt", path="sharegpt.json", output_len=16)
    frozen = workload.freeze("x", dataset, seed, len(expected), context)
    assert [line.text for line in frozen.lines] == [e["prompt"] for e in expected]
    assert frozen.dropped["longer than the context"] > 0
