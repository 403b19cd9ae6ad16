"""Random lengths from the very stream SGLang's client takes them from. Knows no prompts."""

from kit.errors import UnusableInput
from kit.scenario import Dataset


class Lengths:
    """numpy's legacy generator under the seed: input lengths, output lengths, then offsets, in the client's order."""

    def __init__(self, dataset: Dataset, seed: int) -> None:
        import numpy as np

        for key in ("input_len", "output_len"):
            if getattr(dataset, key) is None:
                raise UnusableInput(f"source {dataset.source} needs {key} in its [datasets] table, in tokens")
        self._dataset = dataset
        self._stream = np.random.RandomState(seed)

    def both(self, requests: int) -> tuple[list[int], list[int]]:
        """Input and output lengths in tokens, each between `range_ratio` of the asked length and that length."""
        return self._draw(self._dataset.input_len or 1, requests), self._draw(self._dataset.output_len or 1, requests)

    def offsets(self, below: int, requests: int) -> list[int]:
        """Numbers from 0 to `below` - 1."""
        return [int(x) for x in self._stream.randint(0, below, size=requests)]

    def _draw(self, full: int, requests: int) -> list[int]:
        low = max(int(full * self._dataset.range_ratio), 1)
        return [int(x) for x in self._stream.randint(low, full + 1, size=requests)]
