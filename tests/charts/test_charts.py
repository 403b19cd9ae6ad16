import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import cache

import pytest

from kit.charts import (
    Bar,
    Bracket,
    Line,
    Point,
    Sample,
    Span,
    Words,
    _apart,
    _balanced,
    _envelope,
    _exceedance,
    _stretches,
    over_load,
    over_time,
    pools,
    tail,
)

WORDS = Words(finding="A finding & more", plotted="What is plotted", warning="Rehearsal: random weights")


def line(name: str = "plain", arm: int = 0, light: bool = False) -> Line:
    points = [Point(1, 10.0, 9.0, 11.0), Point(4, 30.0, 25.0, None), Point(16, 70.0)]
    return Line(name=name, arm=arm, points=points, light=light)


DRAWN: dict[str, Callable[[], str]] = {
    "over_load": lambda: over_load(
        WORDS, [line(), line("eagle3", 1)], "tok/s", [Bracket(wins_up_to=4, no_win_from=16)]
    ),
    "over_load_log": lambda: over_load(WORDS, [line(), line("plain P99", 0, light=True)], "ms", scale="log"),
    "one_load": lambda: over_load(WORDS, [Line(name="x", arm=9, points=[Point(8, 1.0)])], "ms"),
    "tail": lambda: tail(WORDS, [("plain", 0, [1.0, 2.0, 50.0]), ("none", 1, [])]),
    "pools": lambda: pools(
        WORDS,
        [
            Bar(name="plain", arm=0, tokens=24_094, label="24,094 tokens"),
            Bar(name="eagle3", arm=1, tokens=9_951, label="9,951 tokens", low=4_663, high=11_054),
        ],
    ),
    "over_time": lambda: over_time(
        WORDS,
        [Sample(t, 900.0, None if t % 7 == 0 else 60.0) for t in range(100)],
        [Span(name="plain", arm=0, start_s=0, end_s=50)],
        900,
        72,
    ),
    "over_time_without_power": lambda: over_time(WORDS, [Sample(0, 900.0, None)], []),
}


@cache
def drawn(name: str) -> str:
    return DRAWN[name]()


@pytest.mark.parametrize("name", DRAWN)
def test_a_chart_is_one_svg_element_that_needs_nothing_else(name: str) -> None:
    svg = drawn(name)
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert "<text" not in svg, "letters are paths, so that no font is needed"
    assert "<image" not in svg
    for link in re.findall(r'href="([^"]*)"', svg):
        assert link.startswith("#")
    for address in re.findall(r"https?://[^\"\s]+", svg):
        assert address.startswith("http://www.w3.org/"), "only names of namespaces"


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_data_gives_the_same_bytes(name: str) -> None:
    first = drawn(name)
    assert first == DRAWN[name]()
    assert "date" not in first.lower()


@pytest.mark.parametrize("name", DRAWN)
def test_the_words_can_be_heard(name: str) -> None:
    svg = drawn(name)
    assert "<title>A finding &amp; more</title>" in svg
    assert "<desc>What is plotted Rehearsal: random weights</desc>" in svg
    assert 'role="img"' in svg


@pytest.mark.parametrize("name", DRAWN)
def test_files_stay_small(name: str) -> None:
    assert len(drawn(name)) < 100_000


def test_arms_differ_by_more_than_colour() -> None:
    svg = over_load(WORDS, [line(), line("eagle3", 1), line("ngram", 2)], "tok/s")
    assert len(set(re.findall(r"stroke-dasharray: ([\d. ,]+)", svg))) >= 2


def test_the_gaps_tail_is_kept_whole_and_its_bulk_thinned() -> None:
    gaps = [float(n) for n in range(1, 100_001)]
    xs, ys = _exceedance(gaps)
    assert len(xs) < 500
    assert xs[-1] == 100_000
    assert ys[-1] == pytest.approx(1e-5)
    assert ys[0] == 1.0
    assert {99_999.0, 99_998.0, 99_997.0} <= set(xs)


def test_no_spike_is_lost_by_thinning_time() -> None:
    points = [(float(t), 900.0) for t in range(10_000)]
    points[5_003] = (5_003.0, 210.0)
    low, high = _envelope(points)
    assert len(low) <= 401
    assert min(v for _, v in low) == 210.0
    assert min(v for _, v in high) == 900.0


def test_nothing_is_drawn_where_nothing_was_sampled() -> None:
    """Between two servers the card is not sampled; a line across would say that it slowly cooled."""
    points = [(t / 10, 900.0) for t in range(50)] + [(60 + t / 10, 900.0) for t in range(30)]
    assert [len(part) for part in _stretches(points)] == [50, 30]
    assert _stretches([]) == []
    assert _stretches([(0.0, 1.0)]) == [[(0.0, 1.0)]]


def test_labels_are_pushed_apart_and_stay_in_order() -> None:
    placed = _apart([0.50, 0.51, 0.9, 0.505], 0.05)
    order = sorted(range(4), key=lambda i: placed[i])
    assert order == [0, 3, 1, 2]
    assert all(placed[b] - placed[a] >= 0.049 for a, b in zip(order, order[1:], strict=False))


def test_a_title_has_no_lonely_word() -> None:
    text = "The draft takes 59 % of the pool: 15 requests of 640 tokens fit instead of 37"
    lines = _balanced(text, 74)
    assert " ".join(lines) == text
    assert len(lines) == 2
    assert len(lines[1]) > 20
