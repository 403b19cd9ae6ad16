"""Every figure of the source article stands in a claim. The list is ours: figure, scenario, claim."""

import re
from functools import cache
from pathlib import Path

import pytest

from kit import scenario

ROOT = Path(__file__).parents[2]
ARTICLE = ROOT.parent / "shared" / "article.md"

FIGURES = [
    # the L4 sweep
    ("three seeds", "l4-eagle3", "seeds"),
    ("512", "l4-eagle3", "input"),
    ("128", "l4-eagle3", "output"),
    ("2.73", "l4-eagle3", "accept-length"),
    ("2.74", "l4-eagle3", "accept-length"),
    ("1.6", "l4-eagle3", "tpot"),
    ("2.3", "l4-eagle3", "tpot"),
    ("32", "l4-eagle3", "no-more-output"),
    # the pool
    ("24,094", "l4-eagle3", "pool-plain"),
    ("9,951", "l4-eagle3", "pool-eagle3"),
    ("15", "l4-eagle3", "fit-eagle3"),
    ("640", "l4-eagle3", "request-tokens"),
    ("60", "l4-eagle3", "pool-share"),
    ("15", "l4-eagle3", "running-at-32"),
    ("8,040", "l4-eagle3", "ttft-eagle3"),
    ("2,970", "l4-eagle3", "ttft-plain"),
    ("48", "l4-eagle3", "cap"),
    ("64", "gb10-moe-eagle3", "output-64"),
    ("276.32", "gb10-moe-eagle3", "output-64-eagle3"),
    ("235.38", "gb10-moe-eagle3", "output-64-plain"),
    ("7,772", "gb10-moe-eagle3", "ttft-64-eagle3"),
    ("557", "gb10-moe-eagle3", "ttft-64-plain"),
    ("16", "gb10-moe-eagle3", "waiting-64"),
    # the data sets
    ("512", "l4-datasets", "cut-to-512"),
    ("four", "l4-datasets", "four-sets"),
    ("900", "l4-datasets", "clock"),
    ("half", "l4-datasets", "tpot-8"),
    ("8", "l4-datasets", "tpot-8"),
    ("2.35", "l4-datasets", "accept-length"),
    ("2.78", "l4-datasets", "accept-length"),
    ("32", "l4-datasets", "output-32"),
    ("1.6", "l4-datasets", "output-32"),
    ("2 to 3", "l4-datasets", "first-token-32"),
    ("1.1", "l4-datasets", "ngram-helps"),
    ("1.2", "l4-datasets", "ngram-helps"),
    ("244", "l4-datasets", "ngram-tail"),
    ("779", "l4-datasets", "ngram-tail"),
    # the card and the model
    ("1.56", "gb10-moe-eagle3", "tpot"),
    ("1.89", "gb10-moe-eagle3", "tpot"),
    ("1.17", "gb10-moe-eagle3", "output-64"),
    ("four", "gb10-moe-eagle3", "four-positions"),
    # quoted from others
    ("23", "l4-datasets", "synthetic"),
    ("1", "l4-draft-length", "best-length"),
    ("20 to 30", "expert-idle", "idle-random"),
    ("1.3", "l4-real-lengths", "median-tpot"),
    ("1.16", "l4-real-lengths", "tail-tpot"),
]
NAMES = ["L4", "EAGLE-3", "qwen3_8b_eagle3", "GB10", "Qwen3-30B-A3B", "P99", "2025"]
"""Digits that are names, and the year of a study."""


@cache
def claims(name: str) -> dict[str, scenario.Claim]:
    return {c.id: c for c in scenario.load(ROOT / "scenarios" / f"{name}.toml").claims}


@pytest.mark.parametrize(("figure", "name", "claim"), FIGURES)
def test_the_figure_is_in_the_claim(figure: str, name: str, claim: str) -> None:
    assert figure in claims(name)[claim].figures


@pytest.mark.parametrize(("figure", "name", "claim"), FIGURES)
def test_a_printed_figure_is_the_claims_number(figure: str, name: str, claim: str) -> None:
    """A figure is the value, a bound, or a load that the claim is about; words and shares are written out here."""
    c = claims(name)[claim]
    words = {"three seeds": 3, "four": 4, "half": 2}
    numbers = [words[figure]] if figure in words else [float(n.replace(",", "")) for n in figure.split(" to ")]
    shares = {"60": 0.587, "23": 1.23, "20 to 30": None}
    stated = [c.value, c.low, c.high, *map(float, c.concurrency)]
    if figure == "20 to 30":
        assert (c.low, c.high) == (0.2, 0.3)
    elif figure in shares:
        assert c.value == shares[figure]
    else:
        assert all(n in stated for n in numbers)


@pytest.mark.skipif(not ARTICLE.is_file(), reason="../shared/article.md is not here")
def test_no_figure_of_the_article_is_left_out() -> None:
    text = re.sub(r"^\d+\. ", "", ARTICLE.read_text(), flags=re.M)
    for name in NAMES:
        text = text.replace(name, "")
    printed = set(re.findall(r"\d[\d,]*(?:\.\d+)?", text))
    listed = {n for figure, _, _ in FIGURES for n in figure.split(" to ")}
    assert {p.rstrip(",") for p in printed} <= listed
