"""Summaries that tests share."""

from kit.analysis import summary
from kit.analysis.summary import Summary
from kit.measurements import Measurements

_SUMMARIES: dict[int, tuple[Measurements, Summary]] = {}


def summarise(m: Measurements) -> Summary:
    """The kit's summary of the measurements, made once for each."""
    if id(m) not in _SUMMARIES:
        _SUMMARIES[id(m)] = m, summary.summarise(m)
    return _SUMMARIES[id(m)][1]
