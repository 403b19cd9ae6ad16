"""Freezes the prompts of a data set to a file that every arm replays byte for byte. Knows nothing of servers.

A source is a file in `kit/workload/sources/`; adding one is enough. The record type of a frozen line belongs to the
client's job, since the client reads it.
"""

import bisect
import difflib
import hashlib
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import msgspec

from kit.client.job import WorkloadLine
from kit.errors import UnusableInput
from kit.measurements import WorkloadRecord, read_lines, write_whole
from kit.scenario import Dataset
from kit.workload import tokens
from kit.workload.source import Context, Prompt, Source, file_sha256

__all__ = ["Context", "Frozen", "check", "freeze", "read", "read_sha", "source", "source_names", "write"]

SOURCES = Path(__file__).parent / "sources"
ALWAYS = frozenset({"source", "ignore_eos"})


class Frozen(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one data set under one seed, in order; what was passed over, and the hashes behind them.

    `shared_prefix_tokens` are those a prefix cache could at most reuse within this list, in tokens over all requests.
    """

    dataset: str
    seed: int
    lines: list[WorkloadLine]
    dropped: dict[str, int]
    source_sha256: str | None
    tokenizer_sha256: str
    shared_prefix_tokens: int


def freeze(dataset_name: str, dataset: Dataset, seed: int, requests: int, context: Context) -> Frozen:
    """Draws `requests` prompts. Raises UnusableInput when file, tokenizer or lengths do not do."""
    check(dataset_name, dataset)
    drawn = source(dataset.source).draw(dataset, seed, requests, context)
    return Frozen(
        dataset=dataset_name,
        seed=seed,
        lines=[_line(i, prompt) for i, prompt in enumerate(drawn.prompts)],
        dropped=drawn.dropped,
        source_sha256=drawn.source_sha256,
        tokenizer_sha256=file_sha256(context.tokenizer / tokens.FILE),
        shared_prefix_tokens=shared_prefix_tokens(p.ids for p in drawn.prompts),
    )


def write(frozen: Frozen, path: Path) -> WorkloadRecord:
    """Writes one JSON object a line; the record's sha256 is that of the file: prompts, lengths and order."""
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in frozen.lines)
    write_whole(path, data)
    return WorkloadRecord(
        dataset=frozen.dataset,
        seed=frozen.seed,
        sha256=hashlib.sha256(data).hexdigest(),
        requests=len(frozen.lines),
        dropped=frozen.dropped,
        source_sha256=frozen.source_sha256,
        tokenizer_sha256=frozen.tokenizer_sha256,
        shared_prefix_tokens=frozen.shared_prefix_tokens,
    )


def read(path: Path) -> list[WorkloadLine]:
    """The lines of a frozen workload; raises UnusableInput that names file and line."""
    return list(read_lines(path, WorkloadLine))


def read_sha(path: Path) -> str:
    """The sha256 of a frozen workload. Raises UnusableInput when the file is missing."""
    if not path.is_file():
        raise UnusableInput(f"{path.parent.name}/{path.name}: missing; the run's workloads are part of its results")
    return file_sha256(path)


def check(dataset_name: str, dataset: Dataset) -> None:
    """Whether the source exists and heeds every key that is set; raises UnusableInput."""
    heeded = source(dataset.source).TAKES | ALWAYS
    for key in Dataset.__struct_fields__:
        if key not in heeded and getattr(dataset, key) != getattr(Dataset(source=""), key):
            raise UnusableInput(
                f"datasets.{dataset_name}.{key}: source {dataset.source} has no use for it; remove the key"
                f" (it heeds {', '.join(sorted(heeded))})"
            )


def source_names() -> list[str]:
    """Every source, by the files that are there."""
    return sorted(p.stem.replace("_", "-") for p in SOURCES.glob("*.py") if p.stem != "__init__")


def source(name: str) -> Source:
    """The source of that name; raises UnusableInput that lists the near ones."""
    if name not in source_names():
        near = difflib.get_close_matches(name, source_names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(source_names())}"
        raise UnusableInput(f"no prompt source {name!r}: {hint}")
    return cast(Source, importlib.import_module(f"kit.workload.sources.{name.replace('-', '_')}"))


def shared_prefix_tokens(prompts: Iterable[list[int]]) -> int:
    """Tokens that each prompt has in common with the start of some earlier one, its last token apart, summed."""
    earlier: list[list[int]] = []
    total = 0
    for ids in prompts:
        place = bisect.bisect(earlier, ids)
        longest = max((_common(ids, other) for other in earlier[max(0, place - 1) : place + 1]), default=0)
        total += min(longest, len(ids) - 1)
        earlier.insert(place, ids)
    return total


def _common(a: list[int], b: list[int]) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _line(index: int, prompt: Prompt) -> WorkloadLine:
    sent_as_ids = prompt.ids if prompt.text is None else None
    return WorkloadLine(
        index=index, output_len=prompt.output_len, text=prompt.text, input_ids=sent_as_ids, input_len=len(prompt.ids)
    )
