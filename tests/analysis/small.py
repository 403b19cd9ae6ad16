"""Truths with short answers, as long in all as the article's 640 tokens, and summaries that tests share."""

from kit.analysis import summary
from kit.analysis.summary import Summary
from kit.measurements import Measurements
from tests.synthetic import Truth

_SUMMARIES: dict[int, tuple[Measurements, Summary]] = {}


def summarise(m: Measurements) -> Summary:
    """The kit's summary of the measurements, made once for each."""
    if id(m) not in _SUMMARIES:
        _SUMMARIES[id(m)] = m, summary.summarise(m)
    return _SUMMARIES[id(m)][1]


def small(**fields: object) -> Truth:
    """A truth of 600 tokens in and 40 out; fields as of `Truth`."""
    return Truth(**{"input_len": 600, "output_len": 40, **fields})  # type: ignore[arg-type]
