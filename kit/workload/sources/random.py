"""`random` as SGLang's client draws it: first turns of ShareGPT, cut or repeated to a length, sent as text.

Read in SGLang 0.5.14 to 0.5.23 (`benchmark/datasets/random.py`): lengths first, inputs before outputs, then the
shuffle. A repeated prompt is easy to draft from, and decoding and encoding again may change a length: the report
compares with what the server counted.
"""

from collections import Counter
from collections.abc import Iterable

from kit.scenario import Dataset
from kit.workload import sharegpt_file, tokens
from kit.workload.lengths import Lengths
from kit.workload.source import EMPTY, Context, Draw, Prompt, enough, fits, shuffled

PINS = (sharegpt_file.PIN,)
TAKES = frozenset({"input_len", "output_len", "range_ratio", "path"})


def draw(dataset: Dataset, seed: int, requests: int, context: Context) -> Draw:
    """Prompts of the asked lengths. Raises UnusableInput when a length or the file does not do."""
    model = tokens.load(context.tokenizer)
    inputs, outputs = Lengths(dataset, seed).both(requests)
    fits(max(inputs), max(outputs), context, "source random")
    inputs = [max(1, length - model.added) for length in inputs]
    turns, seen, name = sharegpt_file.read(dataset, context)
    dropped: Counter[str] = Counter()
    ids = _nonempty((model.encode(first) for first, _ in shuffled(turns, seed)), dropped)
    prompts = [_prompt(i, n, out, model) for n, out, i in zip(inputs, outputs, ids, strict=False)]
    enough(prompts, requests, dropped, name)
    return Draw(prompts, dict(dropped), seen)


def _nonempty(encoded: Iterable[list[int]], dropped: Counter[str]) -> Iterable[list[int]]:
    for ids in encoded:
        if ids:
            yield ids
        else:
            dropped[EMPTY] += 1


def _prompt(ids: list[int], input_len: int, output_len: int, model: tokens.Tokens) -> Prompt:
    repeats = -(-input_len // len(ids))
    ids = (ids * repeats)[:input_len]
    return Prompt(ids=ids, output_len=output_len, text=model.decode(ids))
