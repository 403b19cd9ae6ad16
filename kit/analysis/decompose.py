"""Why a token comes faster or not: speed-up of TPOT = accept length x step time of plain / step time of speculation.

Both step times belong to equal running batches: beyond its cap or pool a speculative server runs fewer requests than
plain at the same load, so it is set beside the plain load at which plain ran as many. Nothing is interpolated.

With S the seconds between first and last chunk, T the tokens after the first chunk and V the verify steps, summed over
all requests, plain has the step time S/T and speculation S/V, and (S/T) / (S'/T') = (T'/V') x (S/T) / (S'/V') exactly.
"""

from collections.abc import Sequence

import msgspec

from kit.analysis.conditions import Condition
from kit.analysis.crossover import State
from kit.analysis.limits import Pressure
from kit.analysis.metrics import chunk_tokens, decode_span, succeeded
from kit.analysis.ratios import Ratio
from kit.analysis.sheet import Entry, Order
from kit.plan import Point

SAME_BATCH = 1.15
"""Running batches within this factor count as equal."""


class Decomposition(msgspec.Struct, frozen=True, kw_only=True):
    """The TPOT speed-up of one arm at one load, taken apart.

    `step_cost` is the time of a verify step over a plain step, and so the accept length at which speculation breaks
    even. `plain_concurrency` is the plain load whose running batch is the same.
    """

    dataset: str
    arm: str
    concurrency: int
    plain_concurrency: int
    running: float | None
    plain_running: float | None
    tpot_gain: float
    accept_length: float
    plain_step_ms: float
    step_ms: float
    step_cost: float
    tokens_per_chunk: float | None
    text: str


class ForcedLength(msgspec.Struct, frozen=True, kw_only=True):
    """What one forced accept length gave."""

    arm: str
    accept_length: float
    tpot_gain: float
    tpot_state: str
    throughput_gain: float | None
    throughput_state: str | None


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """From arms with forced accept lengths: which length pays at a load.

    `pays_from` is the smallest tested length from which every longer one gives a faster TPOT, `fails_at` the largest
    below it that does not; the break-even lies between them. `cost_low`, `cost_high`: the range of accept length over
    TPOT gain of the arms, which is the break-even that each of them implies.
    """

    dataset: str
    concurrency: int
    algorithm: str
    lengths: list[ForcedLength]
    pays_from: float | None
    fails_at: float | None
    cost_low: float
    cost_high: float
    text: str


class _Sums(msgspec.Struct):
    """S, T, V and chunk counts of an arm at a point."""

    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    unverified: int = 0
    chunks: int = 0
    chunk_tokens: int = 0


def decompositions(
    sheet: Sequence[Entry],
    pressures: Sequence[Pressure],
    conditions: Sequence[Condition],
    ratios: Sequence[Ratio],
    order: Order,
) -> list[Decomposition]:
    """One for each arm and fixed concurrency at which a plain load with the same running batch exists."""
    states = {(r.point, r.arm): r.state for r in ratios if r.metric == "tpot_p50_ms"}
    sums = _sums(sheet)
    running = {(p.point, p.arm): p.mean_running for p in pressures}
    by_arm = {c.arm: c for c in conditions}
    plain = next((c.arm for c in conditions if c.baseline), None)
    found = []
    for point, arm in sorted(sums, key=lambda key: order(*key)):
        if arm == plain or plain is None or arm not in by_arm or point.rate_per_s is not None:
            continue
        beside = _same_batch(point, arm, plain, running, sums)
        own = sums[point, arm]
        if beside is not None and own.steps and own.tokens and own.seconds and not own.unverified:
            found.append(
                _decomposition(
                    by_arm[arm],
                    point,
                    beside,
                    own,
                    sums[beside, plain],
                    running.get((point, arm)),
                    running.get((beside, plain)),
                    states.get((point, arm)) if beside == point else None,
                )
            )
    return found


def _sums(sheet: Sequence[Entry]) -> dict[tuple[Point, str], _Sums]:
    found: dict[tuple[Point, str], _Sums] = {}
    for entry in sheet:
        at = found.setdefault((entry.point, entry.arm), _Sums())
        for r in succeeded(entry.trial):
            span = decode_span(r)
            at.chunks += len(r.chunks)
            at.chunk_tokens += chunk_tokens(r)
            if span is None or r.retractions:
                continue
            at.seconds += span[0]
            at.tokens += span[1]
            steps = r.spec.verify_steps if r.spec else None
            at.steps += steps or 0
            at.unverified += steps is None
    return found


def _same_batch(
    point: Point,
    arm: str,
    plain: str,
    running: dict[tuple[Point, str], float | None],
    sums: dict[tuple[Point, str], _Sums],
) -> Point | None:
    """The plain point of the data set whose running batch is nearest and equal; the same load when none is known."""
    own = running.get((point, arm))
    if own is None:
        return point if (point, plain) in sums and sums[point, plain].tokens else None
    near = []
    for (at, other), batch in running.items():
        same = other == plain and at.dataset == point.dataset and at.rate_per_s is None
        if same and batch and own and sums[at, plain].tokens:
            factor = max(batch / own, own / batch)
            near.append((factor, at != point, at.concurrency, at))
    return min(near)[3] if near and min(near)[0] <= SAME_BATCH else None


def _decomposition(
    condition: Condition,
    point: Point,
    beside: Point,
    own: _Sums,
    plain: _Sums,
    running: float | None,
    plain_running: float | None,
    state: State | None,
) -> Decomposition:
    accept, step_s, plain_step_s = own.tokens / own.steps, own.seconds / own.steps, plain.seconds / plain.tokens
    cost = step_s / plain_step_s
    return Decomposition(
        dataset=point.dataset,
        arm=condition.arm,
        concurrency=point.concurrency,
        plain_concurrency=beside.concurrency,
        running=running,
        plain_running=plain_running,
        tpot_gain=accept / cost,
        accept_length=accept,
        plain_step_ms=plain_step_s * 1e3,
        step_ms=step_s * 1e3,
        step_cost=cost,
        tokens_per_chunk=own.chunk_tokens / own.chunks if own.chunks else None,
        text=_says(accept, cost, condition.draft_tokens, state),
    )


def _says(accept: float, cost: float, draft_tokens: int | None, state: State | None) -> str:
    """Whether the draft is poor or verification dear; only the numbers where no difference may be claimed."""
    numbers = f"a verify step takes {cost:.2f} plain steps and yields {accept:.2f} tokens"
    if state == "faster":
        return f"it pays: {numbers}"
    if state is None or state == "undecided":
        return f"{numbers}; whether that pays is undecided"
    if draft_tokens is not None and cost >= draft_tokens:
        return f"verification is too dear for any draft of {draft_tokens} tokens: {numbers}"
    return f"the draft is too poor for what verification costs here: {numbers}, and {cost:.2f} would break even"


def break_evens(ratios: Sequence[Ratio], conditions: Sequence[Condition]) -> list[BreakEven]:
    """One for each data set, load and algorithm that was forced to two accept lengths or more."""
    by_arm = {c.arm: c for c in conditions if c.forced_accept_length is not None}
    groups: dict[tuple[str, int, str], list[ForcedLength]] = {}
    for r in ratios:
        if r.metric == "tpot_p50_ms" and r.arm in by_arm and r.point.rate_per_s is None:
            condition = by_arm[r.arm]
            key = (r.dataset, r.point.concurrency, f"{condition.algorithm}, {condition.draft_tokens} draft tokens")
            groups.setdefault(key, []).append(_forced(r, condition, ratios))
    return [
        _break_even(*key, sorted(lengths, key=lambda x: x.accept_length))
        for key, lengths in groups.items()
        if len({x.accept_length for x in lengths}) > 1
    ]


def _forced(tpot: Ratio, condition: Condition, ratios: Sequence[Ratio]) -> ForcedLength:
    output = next(
        (r for r in ratios
         if (r.point, r.arm, r.metric) == (tpot.point, tpot.arm, "output_throughput_tok_s")), None,
    )  # fmt: skip
    return ForcedLength(
        arm=tpot.arm,
        accept_length=condition.forced_accept_length or 0.0,
        tpot_gain=tpot.gain,
        tpot_state=tpot.state,
        throughput_gain=output.gain if output else None,
        throughput_state=output.state if output else None,
    )


def _break_even(dataset: str, concurrency: int, algorithm: str, lengths: list[ForcedLength]) -> BreakEven:
    pays: float | None = None
    for x in reversed(lengths):
        if x.tpot_state != "faster":
            break
        pays = x.accept_length
    fails = [x.accept_length for x in lengths if x.tpot_state != "faster" and (pays is None or x.accept_length < pays)]
    costs = [x.accept_length / x.tpot_gain for x in lengths]
    text = "no tested length pays" if pays is None else f"every tested length from {pays:g} on pays"
    if pays is not None and fails:
        text = f"the break-even lies between {fails[-1]:g} and {pays:g} tokens per step"
    return BreakEven(
        dataset=dataset,
        concurrency=concurrency,
        algorithm=algorithm,
        lengths=lengths,
        pays_from=pays,
        fails_at=fails[-1] if fails else None,
        cost_low=min(costs),
        cost_high=max(costs),
        text=text,
    )
