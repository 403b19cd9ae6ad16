"""What each arm's KV pool will be, before anything is started. Pure: config.json facts and a card's memory go in.

Pools are ranges over what cannot be known beforehand: what the card has free, and what a process takes before and
between the loads. The ranges come from those uncertainties alone; no measured pool is fitted.
"""

from pathlib import Path

import msgspec

from kit.forecast.memory import NEWEST_READ, Memory, Range, Version, memory_of, version_of
from kit.forecast.pool import counts_draft, max_running
from kit.forecast.server import ArmServer, budgets, context_of, over, server_of, slack, starts, tokens_of, whole
from kit.forecast.shapes import MIB, CannotTell, Facts, Shape, read_facts
from kit.models import folder_name
from kit.scenario import Dataset, Model, Scenario

ASSUMED: Version = (0, 5, 17)  # the version whose rules were checked against captures

__all__ = [
    "ArmForecast",
    "DraftCost",
    "Forecast",
    "Memory",
    "Range",
    "forecast",
    "memory_of",
    "of_scenario",
    "read_facts",
]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of tensor of the draft; `freed` ones cost pool and are dropped right after."""

    name: str
    mib: float
    freed: bool


class DraftCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the draft takes: memory while the pool is sized, and what that is in tokens and requests of the pool.

    `uncollected_mib` is what its constructor built twice and Python may not have collected when the pool is sized;
    it is in the low ends only.
    """

    arm: str
    mib: float
    split: list[Part]
    freed_mib: float
    freed_tokens: int
    uncollected_mib: float
    tokens: Range[int] | None
    requests: dict[str, Range[int]]
    counted: bool


class ArmForecast(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's server. Where `cannot_tell` says why, the figures are missing (null), never 0."""

    starts: str = "cannot tell"
    pool_tokens: Range[int] | None = None
    mem_fraction_static: Range[float] | None = None
    weights_mib: float | None = None
    draft_mib: float | None = None
    bytes_per_token: int | None = None
    max_running_requests: Range[int] | None = None
    capped_by_speculation: bool = False
    requests_that_fit: dict[str, Range[int]] = {}
    running_requests: dict[str, Range[int]] = {}
    notes: list[str] = []
    cannot_tell: str | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of a scenario on a card. Tokens, requests, MiB and GiB; nothing in it was measured."""

    scenario: str
    card: str
    free_gib: Range[float]
    source: str
    sglang: str
    baseline: str
    request_tokens: dict[str, int]
    arms: dict[str, ArmForecast]
    draft_cost_mib: float | None
    draft: DraftCost | None
    notes: list[str]


def of_scenario(scenario: Scenario, models: Path, card: str | None, free_gib: float | None) -> Forecast:
    """The forecast for the verb: facts from the models folder or the kit's own, memory by card or free figure.

    With neither card nor figure the card that the scenario expects is taken. Raises UnusableInput.
    """
    memory = memory_of(card or None, free_gib, scenario.gpu.expected)
    draft = _facts_of(scenario.draft, models) if scenario.draft else None
    return forecast(scenario, _facts_of(scenario.model, models), draft, memory)


def _facts_of(model: Model, models: Path) -> Facts:
    own = Path(model.path)
    return read_facts(model.path, own if own.is_dir() else models / folder_name(model))


def forecast(
    scenario: Scenario, target: Facts, draft: Facts | None, memory: Memory, sglang: str | None = None
) -> Forecast:
    """The pools of every arm of a scenario.

    `draft` are the facts of the scenario's draft, None when it has none. `sglang` overrides the image's version; with
    neither, the rules of ASSUMED are taken and the notes say so.
    """
    text = sglang or (scenario.image.sglang if scenario.image else None)
    version = version_of(text)
    known = version or ASSUMED
    servers: dict[str, ArmServer] = {}
    arms: dict[str, ArmForecast] = {}
    for name, arm in scenario.arms.items():
        try:
            servers[name] = server_of(scenario, arm, target, draft, memory, known)
            arms[name] = _size(scenario, servers[name])
        except CannotTell as unknown:
            arms[name] = ArmForecast(cannot_tell=str(unknown))
    cost = _draft_cost(scenario, servers)
    return Forecast(
        scenario=scenario.name,
        card=memory.name,
        free_gib=memory.free_gib,
        source=memory.source,
        sglang=text or "not stated",
        baseline=scenario.baseline,
        request_tokens=_request_tokens(scenario),
        arms=arms,
        draft_cost_mib=cost.mib if cost else None,
        draft=cost,
        notes=_notes(version, known, target, draft),
    )


def _size(scenario: Scenario, server: ArmServer) -> ArmForecast:
    flags, lengths = server.flags, _request_tokens(scenario)
    budget = Range(budgets(server, server.uncollected_bytes).low, budgets(server, 0).high)
    tokens = tokens_of(server, budget)
    speculates = "speculative-algorithm" in flags
    asked = whole(flags.get("max-running-requests"))
    running = over(tokens, lambda n: max_running(n, context_of(server), asked, speculates))
    fit = {name: Range(tokens.low // t, tokens.high // t) for name, t in lengths.items()}
    return ArmForecast(
        starts=starts(budget, slack(server, tokens)),
        pool_tokens=tokens,
        mem_fraction_static=server.fraction,
        weights_mib=round(server.target.weights_bytes / MIB, 1),
        draft_mib=round(server.draft.weights_bytes / MIB, 1) if server.draft else None,
        bytes_per_token=server.cell,
        max_running_requests=running,
        capped_by_speculation=speculates and asked is None,
        requests_that_fit=fit,
        running_requests={name: Range(min(running.low, r.low), min(running.high, r.high)) for name, r in fit.items()},
        notes=_arm_notes(server, fit, lengths, tokens),
    )


def _arm_notes(server: ArmServer, fit: dict[str, Range[int]], lengths: dict[str, int], tokens: Range[int]) -> list[str]:
    notes = []
    if "mem-fraction-static" not in server.flags:
        low, high = server.fraction.low, server.fraction.high
        gives = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        notes.append(
            f"--mem-fraction-static is not set: SGLang's rule gives {gives} here, and the rule changed between "
            f"versions; set it"
        )
    notes += [
        f"a request of {lengths[name]:,} tokens ({name}) may not fit the pool at all"
        for name, held in fit.items()
        if held.low < 1 <= tokens.high
    ]
    return notes


def _draft_cost(scenario: Scenario, servers: dict[str, ArmServer]) -> DraftCost | None:
    """The cost of the draft in the first arm that has one and can be told."""
    for name, server in servers.items():
        if server.draft:
            return _cost_of(scenario, name, server.draft, server, servers.get(scenario.baseline))
    return None


def _cost_of(scenario: Scenario, arm: str, draft: Shape, server: ArmServer, base: ArmServer | None) -> DraftCost:
    pairs = _pool_pairs(server, base) if base else []
    return DraftCost(
        arm=arm,
        mib=round(draft.weights_bytes / MIB, 1),
        split=[Part(name=t.name, mib=round(t.held_bytes / MIB, 1), freed=t.freed) for t in draft.tensors],
        freed_mib=round(draft.freed_bytes / MIB, 1),
        freed_tokens=draft.freed_bytes // server.cell if server.counted else 0,
        uncollected_mib=round(server.uncollected_bytes / MIB, 1),
        tokens=_spread([more - less for more, less in pairs]),
        requests={
            name: lost
            for name, t in _request_tokens(scenario).items()
            if (lost := _spread([more // t - less // t for more, less in pairs]))
        },
        counted=counts_draft(server.version),
    )


def _pool_pairs(server: ArmServer, base: ArmServer) -> list[tuple[int, int]]:
    """Pools of baseline and arm that meet the same card on the same day, at every end of what is uncertain."""
    plain = tokens_of(base, budgets(base, 0))
    arms = [tokens_of(server, budgets(server, uncollected)) for uncollected in (0, server.uncollected_bytes)]
    return [pair for arm in arms for pair in ((plain.low, arm.low), (plain.high, arm.high))]


def _spread(values: list[int]) -> Range[int] | None:
    return Range(min(values), max(values)) if values else None


def _notes(version: Version | None, known: Version, target: Facts, draft: Facts | None) -> list[str]:
    notes = []
    if version is None:
        notes.append("the scenario names no SGLang version: the rules of 0.5.17 are taken")
    elif known > NEWEST_READ:
        notes.append("this SGLang is newer than the versions whose rules were read (to 0.5.23)")
    for facts in (target, draft):
        notes += [f"{facts.id}: not checked: {fact}" for fact in facts.unverified] if facts else []
    return notes


def _request_tokens(scenario: Scenario) -> dict[str, int]:
    """The longest request of each data set whose lengths the scenario fixes."""
    return {name: total for name, data in scenario.datasets.items() if (total := _longest(data))}


def _longest(data: Dataset) -> int | None:
    if data.input_len is None or data.output_len is None:
        return None
    return data.input_len + data.output_len
