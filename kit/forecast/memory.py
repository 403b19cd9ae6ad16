"""How much memory a card leaves to a server, and which share of it SGLang takes. Knows no model.

The rules of --mem-fraction-static were read in SGLang 0.5.17 and 0.5.23 (`_handle_gpu_memory_settings`); those of
0.5.13 and earlier in public copies of that function.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from kit.errors import UnusableInput
from kit.scenario import FlagValue

CARDS = Path(__file__).parents[1] / "cards.toml"
GIB_MIB = 1024
Version = tuple[int, int, int]
NEWEST_READ: Version = (0, 5, 23)
DRAFT_COUNTED: Version = (0, 5, 14)  # from here the pools are sized after the draft is loaded

# What a process takes of a card before its first weight, when no card is named. Spans the ranges of kit/cards.toml.
ANY_CONTEXT_GIB = (0.15, 1.00)

N = TypeVar("N", int, float)


class Range(msgspec.Struct, Generic[N], frozen=True):
    """What is certain to lie between two values; both ends are meant to be reached."""

    low: N
    high: N


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of kit/cards.toml; its head explains the fields."""

    names: list[str]
    total_gib: tuple[float, float]
    context_gib: tuple[float, float]
    source: str
    smi_mib: float | None = None


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """A card as a server meets it: `free_gib` is what is free when the first weight is loaded.

    `capacity_mib` is the total that SGLang's automatic rule starts from: nvidia-smi's, or torch's where that has none.
    """

    name: str
    free_gib: Range[float]
    source: str
    capacity_mib: float


def memory_of(card: str | None, free_gib: float | None, expected: str = "", path: Path = CARDS) -> Memory:
    """The memory of a card by name, of a free figure, or of the card that the scenario expects.

    `free_gib` is what the card has free before the server starts, as nvidia-smi says. Raises UnusableInput.
    """
    cards = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), dict[str, Card])
    if free_gib is not None:
        return _memory_of_free(free_gib, _find(card, cards) if card else None)
    if card:
        return _memory_of_card(card, _find(card, cards))
    for name, known in cards.items():
        if expected and expected in (name, *known.names):
            return _memory_of_card(name, known)
    named = f"the scenario expects {expected!r}, which kit/cards.toml lacks" if expected else "no card is named"
    raise UnusableInput(f"{named}; give --card ({', '.join(cards)}) or --free-gib")


def _find(name: str, cards: dict[str, Card]) -> Card:
    for key, card in cards.items():
        if name.casefold() in (key.casefold(), *(n.casefold() for n in card.names)):
            return card
    near = difflib.get_close_matches(name.upper(), cards, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(cards)}"
    raise UnusableInput(f"--card {name}: not in kit/cards.toml; {hint}, or give --free-gib")


def _memory_of_card(name: str, card: Card) -> Memory:
    free = Range(card.total_gib[0] - card.context_gib[1], card.total_gib[1] - card.context_gib[0])
    return Memory(name=name, free_gib=_round(free), source=card.source, capacity_mib=_capacity_mib(card))


def _memory_of_free(free_gib: float, card: Card | None) -> Memory:
    least, most = card.context_gib if card else ANY_CONTEXT_GIB
    if free_gib - most <= 0:
        raise UnusableInput(f"--free-gib {free_gib:g}: a server's own context may take {most:g} GiB of it; give more")
    return Memory(
        name=f"{free_gib:g} GiB free",
        free_gib=_round(Range(free_gib - most, free_gib - least)),
        source="the figure given, less what a process takes before the first weight",
        capacity_mib=_capacity_mib(card) if card else free_gib * GIB_MIB,
    )


def _capacity_mib(card: Card) -> float:
    return card.smi_mib or card.total_gib[1] * GIB_MIB


def _round(gib: Range[float]) -> Range[float]:
    return Range(round(gib.low, 3), round(gib.high, 3))


def version_of(text: str | None) -> Version | None:
    """`0.5.13.post1` as (0, 5, 13); None when there is none to read."""
    match = re.match(r"v?(\d+)\.(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def fraction_static(flags: Mapping[str, FlagValue], memory: Memory, version: Version) -> Range[float]:
    """The share of the card that SGLang gives to weights and pool: as asked for, or by its automatic rule.

    The rule's ends differ by the reserve for prefill graphs, which SGLang switches off for some models.
    """
    asked = flags.get("mem-fraction-static")
    if asked is not None:
        return Range(float(asked), float(asked))
    total = memory.capacity_mib
    off = bool(flags.get("disable-prefill-cuda-graph") or flags.get("disable-cuda-graph"))
    shares = [
        round((total - _reserve_mib(flags, total, version, graphs)) / total, 3)
        for graphs in ((False,) if off else (True, False))
    ]
    return Range(min(shares), max(shares))


def _reserve_mib(flags: Mapping[str, FlagValue], total_mib: float, version: Version, prefill_graphs: bool) -> float:
    chunk, max_batch = _chunk_and_batch(flags, total_mib, version)
    reserve = 512 + max(chunk, 2048) * 1.5 + 1024 / 8
    if not flags.get("disable-cuda-graph"):
        reserve += max_batch * 2
    if prefill_graphs:
        reserve += 8 * _prefill_graph_sizes(chunk)
    if total_mib > 60 * GIB_MIB:
        reserve = max(reserve, 10 * GIB_MIB)
    return reserve + _flat_draft_reserve_mib(str(flags.get("speculative-algorithm", "")), version)


def _flat_draft_reserve_mib(algorithm: str, version: Version) -> float:
    if version >= DRAFT_COUNTED or algorithm in ("", "NGRAM"):
        return 0
    if algorithm == "STANDALONE":
        return 6 * GIB_MIB
    return (4 if version >= (0, 5, 10) else 2) * GIB_MIB


def _chunk_and_batch(flags: Mapping[str, FlagValue], total_mib: float, version: Version) -> tuple[int, int]:
    tiers = (
        (20, 2048, 8),
        (35, 4096, 48) if version >= (0, 5, 20) else (35, 2048, 24),
        (60, 4096, 32),
        (160, 8192, 256),
    )
    chunk, batch = next(((c, b) for gib, c, b in tiers if total_mib < gib * GIB_MIB), (16384, 512))
    asked = next((flags[f] for f in ("cuda-graph-max-bs-decode", "cuda-graph-max-bs") if f in flags), batch)
    return int(flags.get("chunked-prefill-size", chunk)), int(asked)


def _prefill_graph_sizes(chunk: int) -> int:
    """How many token counts SGLang captures for prefill up to the chunk."""
    steps = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, chunk, 512))
    return sum(size <= chunk for first, last, step in steps for size in range(first, last + 1, step))
