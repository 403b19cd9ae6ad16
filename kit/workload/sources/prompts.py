"""`prompts`: the reader's own file, a JSON object a line: `{"prompt": ...}` or OpenAI's `{"messages": [...]}`.

A line may name its `output_len` in tokens; the scenario's stands in for lines that do not. Other keys are passed over.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kit.errors import UnusableInput
from kit.scenario import Dataset
from kit.workload import chat, jsonl, tokens
from kit.workload.pins import Pin
from kit.workload.source import Context, Draw, Row, file_sha256, shuffled, take

PINS: tuple[Pin, ...] = ()
TAKES = frozenset({"output_len", "path", "chat_template"})


class Line(msgspec.Struct, frozen=True):
    """One line of the reader's file."""

    prompt: str | None = None
    messages: list[chat.Message] | None = None
    output_len: int | None = None


def draw(dataset: Dataset, seed: int, requests: int, context: Context) -> Draw:
    """Raises UnusableInput, with file and line, for a line that is neither form or has no length."""
    path = _path(dataset, context)
    lines = list(jsonl.read(path, Line))
    for number, line in lines:
        if fault := _fault(line, dataset):
            raise UnusableInput(f"{path.name}:{number}: {fault}")
    rows = _rows(shuffled([line for _, line in lines], seed), dataset, context)
    drawn = take(rows, requests, tokens.load(context.tokenizer), context, path.name)
    return msgspec.structs.replace(drawn, source_sha256=file_sha256(path))


def _path(dataset: Dataset, context: Context) -> Path:
    if not dataset.path:
        raise UnusableInput("source prompts needs your file: --prompts FILE, or path in its [datasets] table")
    path = context.base / dataset.path
    if not path.is_file():
        raise UnusableInput(f"{dataset.path}: no such file, seen from {context.base.name}/")
    return path


def _fault(line: Line, dataset: Dataset) -> str | None:
    if (line.prompt is None) == (line.messages is None):
        return 'give either "prompt" or "messages"'
    if line.messages is not None and not dataset.chat_template:
        return '"messages" need the model\'s chat template; set chat_template = true for this data set'
    length = line.output_len if line.output_len is not None else dataset.output_len
    if length is None:
        return 'has no "output_len"; name one, or set output_len for this data set'
    return f"output_len is {length}; at least 2 tokens are needed" if length < 2 else None


def _rows(lines: list[Line], dataset: Dataset, context: Context) -> Iterator[Row]:
    for line in lines:
        output_len = line.output_len or dataset.output_len or 0
        if not dataset.chat_template or not _says_something(line):
            yield Row(line.prompt or "", output_len)
        else:
            messages = line.messages or [chat.Message("user", line.prompt or "")]
            yield Row(chat.render(context.tokenizer, messages), output_len)


def _says_something(line: Line) -> bool:
    """A template would dress an empty prompt up; it is dropped and counted all the same."""
    spoken = [line.prompt or "", *(m.content for m in line.messages or [])]
    return any(text.strip() for text in spoken)
