"""What a prompt source is given and what it gives back. Knows nothing of servers, nor of where frozen workloads lie."""

import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from kit.errors import UnusableInput
from kit.scenario import Dataset
from kit.workload.pins import Pin
from kit.workload.tokens import Tokens

T = TypeVar("T")
EMPTY, TOO_SHORT, TOO_LONG = "empty prompt", "shorter than 2 tokens", "longer than the context"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """Folders a source may read: downloaded data sets, the model's tokenizer, and the base of the reader's paths.

    `context_tokens` is the most that prompt and answer may hold together; None when it is not known.
    """

    datasets: Path
    tokenizer: Path
    base: Path
    context_tokens: int | None = None


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One drawn prompt. `ids` are its tokens; they are what is sent when `text` is None. `output_len` in tokens."""

    ids: list[int]
    output_len: int
    text: str | None = None


class Draw(msgspec.Struct, frozen=True):
    """What a source drew, what it passed over and why, and the sha256 of the file it read (None: no file)."""

    prompts: list[Prompt]
    dropped: dict[str, int] = {}
    source_sha256: str | None = None


class Source(Protocol):
    """A file in `kit/workload/sources/`: the files it needs, the keys of [datasets.*] that it heeds, and the draw."""

    PINS: tuple[Pin, ...]
    TAKES: frozenset[str]

    def draw(self, dataset: Dataset, seed: int, requests: int, context: Context) -> Draw:
        """Draws `requests` prompts; the same arguments and files give the same draw."""
        ...


class Row(msgspec.Struct, frozen=True):
    """A candidate: the prompt, and the length its answer is to have (tokens)."""

    text: str
    output_len: int


def shuffled(rows: Sequence[T], seed: int) -> list[T]:
    """The rows in the order that SGLang's client gives them: Python's own shuffle under its `--seed`."""
    order = list(rows)
    random.Random(seed).shuffle(order)
    return order


def take(rows: Iterable[Row], requests: int, tokens: Tokens, context: Context, where: str) -> Draw:
    """The first `requests` usable rows. What is unusable is counted, and too few raise UnusableInput: none repeats."""
    prompts: list[Prompt] = []
    dropped: Counter[str] = Counter()
    for row in rows:
        if len(prompts) == requests:
            break
        ids = tokens.encode(row.text)
        if fault := unfit(row, ids, context):
            dropped[fault] += 1
        else:
            prompts.append(Prompt(ids=ids, output_len=row.output_len, text=row.text))
    enough(prompts, requests, dropped, where)
    return Draw(prompts, dict(dropped))


def unfit(row: Row, ids: list[int], context: Context) -> str | None:
    """Why a row cannot be sent, or None. Under 2 tokens on either side is what SGLang's client drops too."""
    if not row.text.strip():
        return EMPTY
    if len(ids) < 2 or row.output_len < 2:
        return TOO_SHORT
    limit = context.context_tokens
    return TOO_LONG if limit is not None and len(ids) + row.output_len > limit else None


def enough(prompts: Sequence[Prompt], requests: int, dropped: Counter[str], where: str) -> None:
    """Raises UnusableInput when fewer prompts were found than are asked for."""
    if len(prompts) >= requests:
        return
    passed = ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
    raise UnusableInput(
        f"{where}: {len(prompts)} usable prompts, {requests} are asked for"
        f"{f' (passed over: {passed})' if passed else ''}; add prompts, or lower the scenario's"
        " sweep.requests_per_user, sweep.min_requests or sweep.concurrency"
    )


def fits(input_len: int, output_len: int, context: Context, where: str) -> None:
    """Raises UnusableInput when the lengths of the scenario do not fit the model's context."""
    limit = context.context_tokens
    if limit is not None and input_len + output_len > limit:
        raise UnusableInput(
            f"{where}: {input_len} tokens in and {output_len} out are more than the context of {limit};"
            " lower datasets.*.input_len or output_len"
        )


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
