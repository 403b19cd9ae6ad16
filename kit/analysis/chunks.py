"""All chunks of a trial's answers end to end, as arrays: what is taken of every gap is taken at once, since a trial has
thousands of them. Knows stamps and token counts; nothing of metrics."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from kit.analysis.quantiles import Numbers
from kit.measurements import RequestRecord


class Chunks:
    """The chunks of `requests`, each of which has at least one: `times_s` and `tokens` of every chunk.

    `gaps_s` are the seconds between two chunks of one answer, what a reader feels; `gap_tokens` came at their ends.
    """

    def __init__(self, requests: Sequence[RequestRecord]) -> None:
        self.requests = requests
        flat = np.fromiter(chain.from_iterable(chain.from_iterable(r.chunks for r in requests)), float).reshape(-1, 2)
        self.times_s: Numbers = flat[:, 0]
        self.tokens = flat[:, 1].astype(int)
        self._counts = np.fromiter((len(r.chunks) for r in requests), int)
        ends_a_gap = np.ones(len(flat), bool)
        ends_a_gap[np.cumsum(self._counts) - self._counts] = False
        self.gaps_s: Numbers = np.diff(self.times_s)[ends_a_gap[1:]]
        self.gap_tokens = self.tokens[ends_a_gap]

    @property
    def longest_gaps_s(self) -> Numbers:
        """The longest gap of each answer of two chunks or more."""
        gaps = self._counts[self._counts > 1] - 1
        return np.maximum.reduceat(self.gaps_s, np.cumsum(gaps) - gaps) if len(gaps) else self.gaps_s
