"""On, off or cannot tell, for each traffic class and arm, with its condition; and the five-point checklist.

Knows how a Summary's states turn into advice; knows nothing of how numbers were made or how they are printed. A traffic
class is a data set and an objective: batch is judged by output throughput, interactive by the time per token, inside
the scenario's limits on TPOT and P99 TTFT where it has any. Figures of a rehearsal (CPU, random weights, forced accept
length, random prompts) get 'rehearsal' and never on or off.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from kit.analysis.conditions import RANDOM_SOURCES, Condition, rehearsal_for
from kit.analysis.crossover import NO_WIN, Crossover, State, crossover
from kit.analysis.in_short import InShort, in_short
from kit.analysis.limits import limits
from kit.analysis.ratios import Ratio
from kit.analysis.summary import Summary
from kit.analysis.table import Row, load_text
from kit.analysis.words import listed_users, percent, users_text

Says: TypeAlias = Literal["on", "off", "cannot tell", "rehearsal"]
Traffic: TypeAlias = Literal["interactive", "batch"]
TRAFFIC: tuple[Traffic, ...] = ("interactive", "batch")
Done: TypeAlias = Literal["done", "act", "cannot tell"]
OWN_PROMPTS = "./inv run --scenario own-prompts --prompts my.jsonl"
SET_LIMITS = "[slo] ttft_p99_s = ..., tpot_p50_s = ...  # your users' limits, into scenarios/{scenario}.toml"
GO_ON = "./inv run --scenario {scenario} --until-decided"
RESUME = "./inv run --scenario {scenario}  # with the options that it was begun with"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with one arm for one traffic class. `condition` belongs to `says`: "up to 16 users".

    `up_to` is the highest tested number of users with a shown gain at it and at every tested load below; `flag` is what
    keeps the server there. `identical` is the share of answers equal to plain's, beside plain's own repeat.
    """

    dataset: str
    traffic: Traffic
    arm: str
    says: Says
    condition: str
    reasons: list[str]
    crossover: Crossover
    up_to: int | None
    flag: str | None
    identical: float | None
    plain_identical: float | None


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A number of a checklist point; None is printed as n/a. `mark` says what it is not: forced, indicative."""

    number: float | None
    digits: int = 0
    unit: str = ""
    mark: str = ""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A small table of a checklist point; each row has a cell for each heading."""

    headings: list[str]
    rows: list[list[str | Value]]


class ChecklistItem(msgspec.Struct, frozen=True, kw_only=True):
    """One of the five points: what was found, whether there is something to do, and what to type next."""

    number: int
    title: str
    state: Done
    text: list[str]
    figures: list[Figures]
    next: list[str]


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader takes away."""

    in_short: list[InShort]
    verdicts: list[Verdict]
    checklist: list[ChecklistItem]


def conclude(summary: Summary) -> Conclusion:
    """The verdicts, by data set, arm and traffic, and the checklist."""
    verdicts = [
        _verdict(summary, dataset, condition, traffic)
        for dataset in summary.datasets
        for condition in summary.conditions
        if not condition.baseline
        for traffic in TRAFFIC
    ]  # fmt: skip
    points = (_pools, _cap, _own_prompts, _tails, _traffic)
    return Conclusion(
        in_short=in_short(summary),
        verdicts=verdicts,
        checklist=_typed_once([point(summary, verdicts) for point in points]),
    )


def _typed_once(checklist: Sequence[ChecklistItem]) -> list[ChecklistItem]:
    """What several points say to type stands at the last of them, where traffic is decided."""
    last = {command: item.number for item in checklist for command in item.next}
    return [msgspec.structs.replace(item, next=[x for x in item.next if last[x] == item.number]) for item in checklist]


# ---- verdicts -------------------------------------------------------------------------------------------------------


def _verdict(summary: Summary, dataset: str, condition: Condition, traffic: Traffic) -> Verdict:
    states, reasons = (_batch if traffic == "batch" else _interactive)(summary, dataset, condition.arm)
    found = crossover(states)
    says, text = _says(found)
    reasons = [*reasons, *_limits(summary, dataset, condition.arm, states)]
    rehearsed = rehearsal_for(condition, summary.sources[dataset])
    if rehearsed:
        says, text = "rehearsal", f"seen here: {_seen(says, text)} ({', '.join(rehearsed)})"
    if traffic == "interactive" and summary.slo is None:
        text += _trades(summary, dataset, condition.arm)
        text += _open_tails(summary, dataset, condition.arm, found.wins_up_to or 0) if says == "on" else ""
    twins = [t for t in summary.twins if (t.dataset, t.arm) == (dataset, condition.arm)]
    return Verdict(
        dataset=dataset,
        traffic=traffic,
        arm=condition.arm,
        says=says,
        condition=text,
        reasons=reasons,
        crossover=found,
        up_to=found.wins_up_to,
        flag=f"--max-running-requests {found.wins_up_to}" if says == "on" else None,
        identical=_least(t.identical for t in twins),
        plain_identical=_least(t.plain_identical for t in twins),
    )


def _says(found: Crossover) -> tuple[Says, str]:
    """A gain that is shown from the lowest load up to N is worth 'on up to N', also when it is open what comes then."""
    if found.kind == "always":
        return "on", f"up to {users_text(found.wins_up_to)}, the highest tested load"
    if found.kind == "none":
        return "off", "at every tested load"
    if found.wins_up_to is not None:
        beyond = f"no gain from {found.no_win_from} on" if found.no_win_from is not None else "not known beyond"
        return "on", f"up to {users_text(found.wins_up_to)}; {beyond}"
    return "cannot tell", found.text.removeprefix("cannot tell: ")


def _seen(says: Says, text: str) -> str:
    """What a rehearsal showed, in words that are no advice."""
    return {"on": f"gain {text}", "off": "no gain at any tested load"}.get(says, text)


def _batch(summary: Summary, dataset: str, arm: str) -> tuple[dict[int, State], list[str]]:
    ratios = _ratios(summary, dataset, arm, "output_throughput_tok_s")
    return {c: r.state for c, r in ratios.items()}, [_told("output", c, r) for c, r in ratios.items()]


def _interactive(summary: Summary, dataset: str, arm: str) -> tuple[dict[int, State], list[str]]:
    tpot = _ratios(summary, dataset, arm, "tpot_p50_ms")
    ttft = _ratios(summary, dataset, arm, "ttft_p99_ms")
    within = _within(summary, dataset, arm)
    states: dict[int, State] = {}
    reasons = []
    for users, ratio in tpot.items():
        reasons.append(_told("time per token", users, ratio))
        states[users] = ratio.state
        if summary.slo is not None:
            states[users], why = _inside(ratio.state, within.get(users), users)
        else:
            states[users], why = _traded(ratio.state, ttft.get(users), users)
        reasons += [why] if why else []
    return states, reasons


def _inside(state: State, within: bool | None, users: int) -> tuple[State, str | None]:
    """With objectives: a load at which the arm misses them is no load to serve, however fast a token comes."""
    if within is None:
        return "undecided", f"{users_text(users)}: a figure that the limits need is missing"
    return (state, None) if within else ("no gain", f"{users_text(users)}: outside the limits with speculation")


def _traded(state: State, ttft: Ratio | None, users: int) -> tuple[State, str | None]:
    """Without objectives: faster tokens for a later first token are a trade that only the reader can settle."""
    if state != "faster" or ttft is None:
        return state, None
    if ttft.state == "slower":
        return (
            "undecided",
            f"{users_text(users)}: but the P99 first token comes {ttft.ratio:.2f} times as late; set [slo]",
        )
    return state, None if ttft.state != "undecided" else f"{users_text(users)}: the P99 first token is undecided"


def _trades(summary: Summary, dataset: str, arm: str) -> str:
    """The loads at which tokens come faster and the P99 first token later: only limits can settle those."""
    ttft = _ratios(summary, dataset, arm, "ttft_p99_ms")
    tpot = _ratios(summary, dataset, arm, "tpot_p50_ms")
    at = [c for c, r in tpot.items() if r.state == "faster" and c in ttft and ttft[c].state == "slower"]
    if not at:
        return ""
    return f"; at {listed_users(at)} tokens come faster and the P99 first token later: set [slo]"


def _open_tails(summary: Summary, dataset: str, arm: str, up_to: int) -> str:
    """What 'on' leaves open without objectives: loads at which the P99 first token may or may not be later."""
    ttft = _ratios(summary, dataset, arm, "ttft_p99_ms")
    open_ = [c for c, r in ttft.items() if c <= up_to and r.state == "undecided"]
    if not open_:
        return ""
    return f"; whether the P99 first token comes later is undecided at {listed_users(open_)}"


def _told(what: str, users: int, ratio: Ratio) -> str:
    interval = "" if ratio.low is None or ratio.high is None else f" ({ratio.low:.2f} to {ratio.high:.2f})"
    note = f", {ratio.note}" if ratio.note else ""
    return f"{users_text(users)}: {what} {ratio.ratio:.2f} times plain's{interval}, {ratio.state}{note}"


def _limits(summary: Summary, dataset: str, arm: str, states: dict[int, State]) -> list[str]:
    """What holds the arm back at the first load that is shown to have no gain, or at the highest with one."""
    if not states:
        return []
    users = next((c for c in sorted(states) if states[c] in NO_WIN), max(states))
    if states[users] == "undecided":
        return []
    at = [p for p in summary.pressures
          if (p.arm, p.dataset, p.point.concurrency, p.point.rate_per_s) == (arm, dataset, users, None)]  # fmt: skip
    return [f"what limits it at {users_text(users)}: {x.text}" for p in at for x in limits(p)]


def _ratios(summary: Summary, dataset: str, arm: str, metric: str) -> dict[int, Ratio]:
    return {
        r.point.concurrency: r
        for r in summary.ratios
        if (r.dataset, r.arm, r.metric, r.point.rate_per_s) == (dataset, arm, metric, None)
    }


def _within(summary: Summary, dataset: str, arm: str) -> dict[int, bool | None]:
    return {
        load.concurrency: load.within
        for o in summary.objectives
        if (o.dataset, o.arm) == (dataset, arm)
        for load in o.loads
    }


def _least(shares: Iterable[float | None]) -> float | None:
    return min((s for s in shares if s is not None), default=None)


# ---- the checklist --------------------------------------------------------------------------------------------------


def _pools(summary: Summary, _: Sequence[Verdict]) -> ChecklistItem:
    """One row for each arm: its pool, what of plain's it lacks, and how many requests of each data set fit."""
    most = max((r.point.concurrency for r in summary.rows), default=0)
    short = [(c.arm, fit) for c in summary.conditions for fit in c.fits if not c.baseline and fit.requests < most]
    known = all(c.pool_tokens for c in summary.conditions) and len(summary.conditions) > 1
    text = [_pool_text(c) for c in summary.conditions if not c.baseline]
    text += [f"{arm} on {fit.dataset}: {fit.requests} requests fit, and the sweep goes to {users_text(most)}"
             for arm, fit in short]  # fmt: skip
    headings = ["arm", "KV pool (tokens)", "less than plain's", *(f"requests that fit, {d}" for d in summary.datasets)]
    return ChecklistItem(
        number=1,
        title="The KV pool of the speculative server beside plain's",
        state="cannot tell" if not known else "act" if short else "done",
        text=text,
        figures=_figures(headings, [_pool_row(c, summary.datasets) for c in summary.conditions]),
        next=[f"./inv forecast --scenario {summary.scenario}"] if short or not known else [],
    )


def _pool_row(c: Condition, datasets: Sequence[str]) -> list[str | Value]:
    lost = None if c.draft_share is None else 100 * c.draft_share
    fits = {f.dataset: f.requests for f in c.fits}
    return [
        c.arm,
        Value(number=c.pool_tokens, mark="forced" if c.pool_forced else ""),
        "–" if c.baseline else Value(number=lost, digits=1, unit="%"),
        *(Value(number=fits.get(d)) for d in datasets),
    ]


def _pool_text(c: Condition) -> str:
    if c.pool_tokens is None:
        return f"{c.arm}: the server did not say its pool"
    if c.draft_share is None:
        why = "a pool was set by --max-total-tokens" if c.pool_forced else "plain's pool is unknown"
        return f"{c.arm}: {c.pool_tokens:,} tokens; its share of plain's cannot be read, since {why}"
    return f"{c.arm}: {c.pool_tokens:,} tokens, {percent(c.draft_share)} less than plain"


def _cap(summary: Summary, verdicts: Sequence[Verdict]) -> ChecklistItem:
    """One row for each arm and data set: the cap, and up to where a gain is shown."""
    by_arm = {c.arm: c for c in summary.conditions if not c.baseline}
    states = {_cap_state(by_arm[v.arm], v) for v in verdicts}
    typed = [f"{v.flag}  # {_name(v)}" for v in verdicts if v.flag and _cap_state(by_arm[v.arm], v) == "act"]
    rows: list[list[str | Value]] = [[arm, dataset, _cap_value(by_arm[arm]), *(v.crossover.text for v in both)]
            for (arm, dataset), both in _by_arm(verdicts).items()]  # fmt: skip
    return ChecklistItem(
        number=2,
        title="A max_running_requests of your own",
        state=_worst(states),
        text=[_cap_text(c) for c in by_arm.values()],
        figures=_figures(["arm", "prompts", "max running requests", *(f"gain, {x}" for x in TRAFFIC)], rows),
        next=typed or _more(summary, states),
    )


def _cap_value(c: Condition) -> Value:
    return Value(number=c.max_running_requests, mark="set by the server" if c.cap_warning else c.cap)


def _cap_text(c: Condition) -> str:
    if c.max_running_asked is not None:
        return f"{c.arm}: your own value, {c.max_running_asked}"
    how = "the server set it when speculation was turned on, with one warning" if c.cap_warning else "a default"
    return f"{c.arm}: {how}"


def _cap_state(c: Condition, v: Verdict) -> Done:
    if v.says == "off":
        return "done"
    if v.says not in ("on",) or v.up_to is None:
        return "cannot tell"
    return "done" if c.max_running_asked == v.up_to else "act"


def _own_prompts(summary: Summary, _: Sequence[Verdict]) -> ChecklistItem:
    own = [d for d in summary.datasets if summary.sources[d] not in RANDOM_SOURCES]
    real = [d for d in own if not summary.ignores_eos[d]]
    text = [
        f"prompts that are not random: {', '.join(own) or 'none'}",
        f"of these with their real answer lengths (the end token is heeded): {', '.join(real) or 'none'}",
    ]
    text += [f"rehearsal: {reason}" for reason in summary.rehearsal]
    done = real and not summary.rehearsal
    return ChecklistItem(
        number=3,
        title="Your own prompts with their real answer lengths",
        state="done" if done else "act",
        text=text,
        figures=[*_accept_lengths(summary), *_biases(summary)],
        next=[] if done else [OWN_PROMPTS],
    )


def _accept_lengths(summary: Summary) -> list[Figures]:
    """Accept length, one row for each arm and data set, one column for each load."""
    forced = {c.arm for c in summary.conditions if c.forced_accept_length is not None}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in (r for r in summary.rows if "accept_length" in r.cells):
        found.setdefault((row.arm, row.dataset), {})[row.load] = row.cells["accept_length"].value
    loads = list(dict.fromkeys(r.load for r in summary.rows))
    rows: list[list[str | Value]] = [
        [arm, dataset,
         *(Value(number=at.get(x), digits=2, mark="forced" if arm in forced and x in at else "") for x in loads)]
        for (arm, dataset), at in found.items()
    ]  # fmt: skip
    return _figures(["accept length of", "prompts", *loads], rows)


def _biases(summary: Summary) -> list[Figures]:
    rows: list[list[str | Value]] = [
        [b.arm, users_text(b.concurrency), f"{b.over} over {b.under}", b.kind, _heading(summary, b.metric),
         Value(number=b.factor, digits=2)]
        for b in summary.biases
    ]  # fmt: skip
    return _figures(["arm", "load", "gain on", "bias by", "metric", "factor"], rows)


TAILS = (
    "ttft_p50_ms", "ttft_p99_ms", "gap_longest_p50_ms", "gap_longest_p99_ms", "tpot_p50_ms", "tpot_p99_ms",
    "itl_sglang_p99_ms",
)  # fmt: skip


def _tails(summary: Summary, _: Sequence[Verdict]) -> ChecklistItem:
    """Median and P99 side by side. A P99 that got slower has to be weighed: limits in the scenario do that."""
    judged = [r for r in summary.ratios if r.metric in ("ttft_p99_ms", "gap_longest_p99_ms")]
    slower = [r for r in judged if r.state == "slower"]
    open_ = [r for r in judged if r.state == "undecided"]
    text = _slower_tails(summary, slower)
    text += [f"{len(open_)} of {len(judged)} tails are undecided"] if open_ else []
    weighed = summary.slo is not None
    state: Done = "act" if slower and not weighed else "cannot tell" if open_ or not judged else "done"
    headings = ["prompts", "load", "arm", *(f"{_heading(summary, x)} (ms)" for x in TAILS)]
    return ChecklistItem(
        number=4,
        title="The P99 of first token and of silence, beside the median",
        state=state,
        text=text or ["no P99 got slower"] if judged else ["no P99 was compared"],
        figures=_figures(headings, [_tail_row(summary, r) for r in summary.rows]),
        next=[SET_LIMITS.format(scenario=summary.scenario)] if state == "act" else _more(summary, {state}),
    )


def _slower_tails(summary: Summary, slower: Sequence[Ratio]) -> list[str]:
    """One line for each arm, data set and metric, with the loads at which it got slower."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for r in slower:
        found.setdefault((r.arm, r.dataset, r.metric), []).append(f"{r.ratio:.2f} at {load_text(r.point)}")
    return [f"{arm} on {dataset}: {_heading(summary, metric)} slower, times plain's: {', '.join(at)}"
            for (arm, dataset, metric), at in found.items()]  # fmt: skip


def _tail_row(summary: Summary, row: Row) -> list[str | Value]:
    digits = {m.tag: m.digits for m in summary.metrics}
    cells = [(x, row.cells.get(x)) for x in TAILS]
    return [
        row.dataset,
        row.load,
        row.arm,
        *(
            Value(
                number=cell.value if cell else None,
                digits=digits[tag],
                mark="indicative" if cell and "_p99_" in tag and cell.quantile and cell.quantile.indicative else "",
            )
            for tag, cell in cells
        ),
    ]


def _traffic(summary: Summary, verdicts: Sequence[Verdict]) -> ChecklistItem:
    """One row for each arm and data set: what to do with its interactive traffic and with its batch jobs."""
    decided = [v for v in verdicts if v.says in ("on", "off")]
    state: Done = "cannot tell" if len(decided) < len(verdicts) or not verdicts else "act" if decided else "done"
    typed = [f"{_flags(summary, v.arm)} {v.flag}  # {_name(v)}" for v in decided if v.says == "on" and v.flag]
    rows: list[list[str | Value]] = [[arm, dataset, *(f"{v.says}: {v.condition}" for v in both), _same(both[0])]
            for (arm, dataset), both in _by_arm(verdicts).items()]  # fmt: skip
    return ChecklistItem(
        number=5,
        title="On for which traffic, off for which",
        state=state,
        text=[f"{len(decided)} of {len(verdicts)} traffic classes are decided"],
        figures=_figures(["arm", "prompts", *TRAFFIC, "same answers as plain"], rows),
        next=typed or _more(summary, {state}),
    )


def _same(v: Verdict) -> Value:
    return Value(number=None if v.identical is None else 100 * v.identical, digits=1, unit="%")


def _figures(headings: list[str], rows: Sequence[Sequence[str | Value]]) -> list[Figures]:
    """A table of one point; none without rows."""
    return [Figures(headings=headings, rows=[list(r) for r in rows])] if rows else []


def _by_arm(verdicts: Sequence[Verdict]) -> dict[tuple[str, str], list[Verdict]]:
    """The verdicts of each arm and data set, in the order of TRAFFIC."""
    found: dict[tuple[str, str], list[Verdict]] = {}
    for v in verdicts:
        found.setdefault((v.arm, v.dataset), []).append(v)
    return found


def _name(v: Verdict) -> str:
    return f"{v.arm} on {v.dataset}, {v.traffic}"


def _heading(summary: Summary, metric: str) -> str:
    return next(m.heading for m in summary.metrics if m.tag == metric)


def _flags(summary: Summary, arm: str) -> str:
    return " ".join(summary.flags[arm])


def _worst(states: set[Done]) -> Done:
    for state in ("act", "cannot tell", "done"):
        if state in states:
            return state
    return "cannot tell"


def _more(summary: Summary, states: set[Done]) -> list[str]:
    """What to type when something cannot be told: the rest of the run first, then real figures, then more seeds."""
    if "cannot tell" not in states and states:
        return []
    if not summary.finished:
        return [RESUME.format(scenario=summary.scenario)]
    return [OWN_PROMPTS] if summary.rehearsal else [GO_ON.format(scenario=summary.scenario)]
