"""Under which conditions each arm was measured: what its servers said of themselves, over all its starts."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

import msgspec

from kit.analysis.gpu import GpuSummary
from kit.analysis.metrics import succeeded
from kit.analysis.sheet import Entry
from kit.measurements import Load, Measurements, ServerFacts, ServerRecord
from kit.scenario import Scenario

RANDOM_SOURCES = ("random", "random-ids")


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests of a data set's realised mean length (prompt and answer) the pool holds at a time."""

    dataset: str
    mean_tokens: float
    requests: int


class Cards(msgspec.Struct, frozen=True, kw_only=True):
    """What the cards did over an arm's trials: medians and means over trials, the worst share and temperature."""

    sm_clock_mhz: float | None
    held_share: float | None
    mean_power_w: float | None
    temperature_max_c: int | None
    reasons_s: dict[str, float]


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's server. None where the server does not say; `differs` names what its starts disagree on.

    `draft_share` is the part of the plain server's pool that this arm lacks: None for plain, and when a pool was
    forced with --max-total-tokens (`pool_forced`). `env` holds what the scenario set, not the machine's variables.
    """

    arm: str
    baseline: bool
    algorithm: str | None
    version: str | None
    unknown_version: bool
    device: str | None
    cpu: bool
    starts: int
    pool_tokens: int | None
    draft_pool_tokens: int | None
    pool_forced: bool
    draft_share: float | None
    fits: list[Fit]
    max_running_requests: int | None
    max_running_asked: int | None
    cap: str
    cap_warning: bool
    graph_max_batch: int | None
    weights_gib: float | None
    draft_weights_gib: float | None
    chunked_prefill_tokens: int | None
    context_tokens: int | None
    mem_fraction_static: float | None
    kv_dtype: str | None
    load_format: str | None
    random_weights: bool
    forced_accept_length: float | None
    draft_steps: int | None
    draft_tokens: int | None
    ready_after_s: float | None
    argv: list[str]
    env: dict[str, str]
    cards: Cards | None
    mismatches: list[str]
    differs: list[str]


FIT_NOTE = (
    "Requests that fit: pool tokens over the realised mean of prompt and answer, rounded down. The server also keeps "
    "some slots per running request for drafts, so a little fewer fit in truth."
)


def conditions(m: Measurements, scenario: Scenario, sheet: Sequence[Entry]) -> list[Condition]:
    """One for each arm of the scenario that started at least once, the baseline first."""
    arms = [scenario.baseline, *(a for a in scenario.arms if a != scenario.baseline)]
    servers = {arm: [s for _, s in m.servers if s.arm == arm] for arm in arms}
    plain = servers[scenario.baseline]
    return [
        _condition(arm, servers[arm], plain, [e for e in sheet if e.arm == arm], scenario)
        for arm in arms
        if servers[arm]
    ]


def _condition(
    arm: str, servers: list[ServerRecord], plain: list[ServerRecord], sheet: list[Entry], scenario: Scenario
) -> Condition:
    last, facts = servers[-1], [s.facts for s in servers]
    f = facts[-1]
    draft_pools = [p.tokens for p in f.pools if p.role == "draft"]
    forced = any(x.max_total_tokens_asked is not None for x in facts)
    return Condition(
        arm=arm,
        baseline=arm == scenario.baseline,
        algorithm=f.algorithm,
        version=f.version,
        unknown_version=any(x.unknown_version for x in facts),
        device=f.device,
        cpu=f.device == "cpu",
        starts=len(servers),
        pool_tokens=f.pool_tokens,
        draft_pool_tokens=draft_pools[0] if draft_pools else None,
        pool_forced=forced,
        draft_share=None if arm == scenario.baseline else _draft_share(facts, [s.facts for s in plain]),
        fits=_fits(f.pool_tokens, sheet, list(scenario.datasets)),
        max_running_requests=f.max_running_requests,
        max_running_asked=f.max_running_requests_asked,
        cap="default" if f.max_running_requests_asked is None else "asked",
        cap_warning=any(x.cap_warning for x in facts),
        graph_max_batch=f.graph_max_batch,
        weights_gib=_taken_gib(f.loads[0]) if f.loads else None,
        draft_weights_gib=_taken_gib(f.loads[1]) if len(f.loads) > 1 else None,
        chunked_prefill_tokens=f.chunked_prefill_tokens,
        context_tokens=f.context_tokens,
        mem_fraction_static=f.mem_fraction_static,
        kv_dtype=f.kv_dtype,
        load_format=f.load_format,
        random_weights=f.load_format == "dummy",
        forced_accept_length=f.forced_accept_length,
        draft_steps=f.draft_steps,
        draft_tokens=f.draft_tokens,
        ready_after_s=last.ready_after_s,
        argv=last.argv,
        env=_own_env(scenario, arm, last.env),
        cards=_cards([e.cards for e in sheet if e.cards]),
        mismatches=sorted({x for each in facts for x in each.mismatches}),
        differs=_differs(facts),
    )


def _taken_gib(load: Load) -> float | None:
    """What a load took of the free memory; on a CPU other work may free more meanwhile, and then it is not known."""
    return load.memory_gib if load.memory_gib >= 0 else None


def _own_env(scenario: Scenario, arm: str, started_with: Mapping[str, str]) -> dict[str, str]:
    """Of the server's environment what the scenario set for it: the rest is the machine's."""
    own = {**scenario.server.env, **scenario.arms[arm].env}
    return {name: value for name, value in started_with.items() if name in own}


def _draft_share(arm: list[ServerFacts], plain: list[ServerFacts]) -> float | None:
    """1 - pool / the plain server's pool; None when one is unknown or was forced."""
    if any(f.max_total_tokens_asked is not None for f in [*arm, *plain]):
        return None
    pools = [f.pool_tokens for f in arm if f.pool_tokens], [f.pool_tokens for f in plain if f.pool_tokens]
    if not pools[0] or not pools[1]:
        return None
    return 1 - (sum(pools[0]) / len(pools[0])) / (sum(pools[1]) / len(pools[1]))


def _fits(pool_tokens: int | None, sheet: list[Entry], datasets: list[str]) -> list[Fit]:
    found = []
    for dataset in datasets:
        lengths = [
            r.prompt_tokens + r.completion_tokens
            for e in sheet
            if e.point.dataset == dataset
            for r in succeeded(e.trial)
            if r.prompt_tokens is not None and r.completion_tokens is not None
        ]
        mean = sum(lengths) / len(lengths) if lengths else 0
        if pool_tokens and mean:
            found.append(Fit(dataset=dataset, mean_tokens=mean, requests=int(pool_tokens // mean)))
    return found


def _cards(seen: list[GpuSummary]) -> Cards | None:
    if not seen:
        return None
    clocks = [c.sm_clock_mhz for c in seen if c.sm_clock_mhz is not None]
    powers = [c.mean_power_w for c in seen if c.mean_power_w is not None]
    reasons: dict[str, float] = {}
    for name, seconds in (item for c in seen for item in (c.reasons_s or {}).items()):
        reasons[name] = reasons.get(name, 0.0) + seconds
    return Cards(
        sm_clock_mhz=median(clocks) if clocks else None,
        held_share=min((c.held_share for c in seen if c.held_share is not None), default=None),
        mean_power_w=fmean(powers) if powers else None,
        temperature_max_c=max((c.temperature_max_c for c in seen if c.temperature_max_c is not None), default=None),
        reasons_s=dict(sorted(reasons.items())),
    )


def _differs(facts: list[ServerFacts]) -> list[str]:
    """Names and values of what the starts of one arm disagree on."""
    fields: dict[str, Callable[[ServerFacts], object]] = {
        "version": lambda f: f.version,
        "pool tokens": lambda f: f.pool_tokens,
        "max running requests": lambda f: f.max_running_requests,
        "graph ceiling": lambda f: f.graph_max_batch,
        "memory fraction": lambda f: f.mem_fraction_static,
        "device": lambda f: f.device,
    }
    seen = {name: sorted({str(take(f)) for f in facts}) for name, take in fields.items()}
    return [f"{name}: {' and '.join(values)}" for name, values in seen.items() if len(values) > 1]


def rehearsal(conditions: Sequence[Condition], scenario: Scenario) -> list[str]:
    """Why the figures of this run are a rehearsal, in words for the report's first line; empty for a real run."""
    forced = [c.arm for c in conditions if c.forced_accept_length is not None]
    reasons = {
        "the server ran on the CPU": any(c.cpu for c in conditions),
        "the weights are random": any(c.random_weights for c in conditions),
        f"the accept length was forced ({', '.join(forced)})": bool(forced),
        "all prompts are random": all(d.source in RANDOM_SOURCES for d in scenario.datasets.values()),
    }
    return [text for text, holds in reasons.items() if holds]


def rehearsal_for(condition: Condition, source: str) -> list[str]:
    """The reasons that hold for one arm on one data set: no verdict stands on such figures."""
    reasons = {
        "CPU": condition.cpu,
        "random weights": condition.random_weights,
        "forced accept length": condition.forced_accept_length is not None,
        "random prompts": source in RANDOM_SOURCES,
    }
    return [text for text, holds in reasons.items() if holds]
