"""`random-ids`: consecutive token ids from a random offset, as SGLang's client makes them with `--tokenize-prompt`.

The text means nothing, so acceptance on it means nothing either, and a mixture-of-experts model leaves experts idle:
good for pools, queues and speed of the server, never for a verdict. Needs no file and no tokenizer library.
"""

from kit.scenario import Dataset
from kit.workload import tokens
from kit.workload.lengths import Lengths
from kit.workload.pins import Pin
from kit.workload.source import Context, Draw, Prompt, fits

PINS: tuple[Pin, ...] = ()
TAKES = frozenset({"input_len", "output_len", "range_ratio"})


def draw(dataset: Dataset, seed: int, requests: int, context: Context) -> Draw:
    """Request i holds (offset + i + j) modulo the vocabulary for j from 0; sent as ids."""
    size = tokens.vocabulary_size(context.tokenizer)
    stream = Lengths(dataset, seed)
    inputs, outputs = stream.both(requests)
    fits(max(inputs), max(outputs), context, "source random-ids")
    starts = [offset + i for i, offset in enumerate(stream.offsets(size, requests))]
    return Draw(
        [
            Prompt(ids=[(start + j) % size for j in range(length)], output_len=output)
            for start, length, output in zip(starts, inputs, outputs, strict=True)
        ]
    )
