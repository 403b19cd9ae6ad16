"""`sharegpt`: first turns as they are, answers as long as the reference answer unless `output_len` fixes them.

Follows SGLang's client: shuffle under the seed, drop what is under 2 tokens or does not fit the context.
"""

import msgspec

from kit.scenario import Dataset
from kit.workload import chat, sharegpt_file, tokens
from kit.workload.source import Context, Draw, Row, shuffled, take

PINS = (sharegpt_file.PIN,)
TAKES = frozenset({"output_len", "path", "chat_template"})


def draw(dataset: Dataset, seed: int, requests: int, context: Context) -> Draw:
    """Raises UnusableInput when the file is missing, damaged or holds too few usable conversations."""
    model = tokens.load(context.tokenizer)
    turns, seen, name = sharegpt_file.read(dataset, context)
    rows = (
        Row(_text(first, dataset, context), dataset.output_len or len(model.encode(answer)))
        for first, answer in shuffled(turns, seed)
    )
    return msgspec.structs.replace(take(rows, requests, model, context, name), source_sha256=seen)


def _text(first: str, dataset: Dataset, context: Context) -> str:
    return chat.render(context.tokenizer, [chat.Message("user", first)]) if dataset.chat_template else first
