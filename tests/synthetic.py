"""Measurements with a known truth, made without a server: for tests of whatever reads measurements.

`build(Truth(...))` gives Measurements; `Truth` says how each arm's server behaves: time per decode step by running
batch, accept length, prefill time, pool and cap, run noise, restart noise and drift. A small queue model does the rest.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
import numpy as np

from kit import measurements as ms
from kit import plan, scenario
from kit.measurements import Measurements, TrialData


class ArmTruth(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's server. `speed` scales its time per token away from plain's at a concurrency: 1.2 is 1.2 times faster.

    With `accept_length` above 1 an answer's tokens come in chunks of about that many. `pool_tokens` and
    `max_running` make requests wait. `own_noise` is run noise beyond the common one, for accept lengths that move.
    """

    speed: Callable[[int], float] | float = 1.0
    accept_length: float | None = None
    forced_accept_length: float | None = None
    pool_tokens: int = 24_094
    max_running: int = 4096
    max_running_asked: int | None = None
    cap_warning: bool = False
    graph_max_batch: int | None = 256
    own_noise: float = 0.0
    other_answers: bool = False
    algorithm: str | None = None
    flags: dict[str, scenario.FlagValue] = {}
    draft: bool = False


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """The whole run. Noises are standard deviations of logarithms: `noise` of a trial, `restart` of a server's start
    (at all its loads), `restart_at_point` of a start at one load; `drift` is by how much a leg is slower than the one
    before. With `new_seeds` each further block takes the next seeds, as `--until-decided` does. `datasets` maps names
    to their tables; `speeds` overrides an arm's speed on one data set."""

    arms: Mapping[str, ArmTruth] = msgspec.field(
        default_factory=lambda: {"plain": ArmTruth(), "eagle3": ArmTruth(speed=1.5, accept_length=2.7, draft=True)}
    )
    datasets: Mapping[str, scenario.Dataset] = msgspec.field(
        default_factory=lambda: {"own": scenario.Dataset(source="prompts", path="own.jsonl")}
    )
    speeds: Mapping[tuple[str, str], Callable[[int], float] | float] = {}
    concurrency: tuple[int, ...] = (1, 8, 32)
    rates: tuple[float, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)
    blocks: int = 1
    new_seeds: bool = False
    sittings: int = 1
    requests: int = 16
    input_len: int = 600
    output_len: int = 40
    token_s: float = 0.02
    prefill_s: float = 0.05
    noise: float = 0.0
    restart: float = 0.0
    restart_at_point: float = 0.0
    drift: float = 0.0
    device: str = "cuda"
    load_format: str = "auto"
    version: str = "0.5.17"
    slo: scenario.Slo | None = None
    draw: int = 0


def scenario_of(truth: Truth) -> scenario.Scenario:
    """The scenario that the measurements claim to come from."""
    return scenario.Scenario(
        name="synthetic",
        title="Synthetic",
        question="What does the analysis make of a known truth?",
        engine="process",
        model=scenario.Model(path="tests/model"),
        draft=scenario.Model(path="tests/draft"),
        arms={name: scenario.Arm(flags=arm.flags, draft=arm.draft) for name, arm in truth.arms.items()},
        datasets=dict(truth.datasets),
        sweep=scenario.Sweep(
            concurrency=list(truth.concurrency), rates=list(truth.rates), seeds=list(truth.seeds),
            requests_per_user=1, min_requests=truth.requests,
        ),
        slo=truth.slo,
    )  # fmt: skip


KEPT = 8
"""How many of the last are kept for the next test that asks: the garbage collector walks through all that is kept."""
_BUILT: dict[str, tuple[Truth, Measurements]] = {}


def build(truth: Truth | None = None) -> Measurements:
    """The measurements that a run of the truth would leave. Equal truths may share them: change a copy (`edited`)."""
    truth = truth or Truth()
    key = repr(truth)  # names a function by its address, which stays its own while the truth is kept
    if key not in _BUILT:
        _BUILT[key] = truth, _build(truth)
        drop_first(_BUILT)
    return _BUILT[key][1]


def drop_first(made: dict[Any, Any]) -> None:
    """Leaves the last `KEPT`."""
    if len(made) > KEPT:
        del made[next(iter(made))]


def _build(truth: Truth) -> Measurements:
    asked, rng = scenario_of(truth), np.random.default_rng(truth.draw)
    servers: list[tuple[int, ms.ServerRecord]] = []
    trials: list[TrialData] = []
    blocks = [plan.block(asked, number, seeds=_seeds(truth, number)) for number in range(1, truth.blocks + 1)]
    for sitting in range(1, truth.sittings + 1):
        for block in blocks:
            for order, leg in enumerate(block.legs):
                servers.append((sitting, _server(truth, leg)))
                luck = rng.normal(0, truth.restart)
                at_point = {p: rng.normal(0, truth.restart_at_point) for p in plan.points(asked)}
                for trial in leg.trials:
                    slow = luck + at_point[trial.point] + truth.drift * order + rng.normal(0, truth.noise)
                    slow += rng.normal(0, truth.arms[leg.arm].own_noise)
                    trials.append(_trial(truth, trial, sitting, float(np.exp(slow))))
    return Measurements(
        run=_run(asked, blocks),
        sittings=[_sitting(n) for n in range(1, truth.sittings + 1)],
        servers=servers,
        trials=trials,
        incomplete=[],
    )


def _seeds(truth: Truth, block: int) -> tuple[int, ...]:
    shift = (block - 1) * len(truth.seeds) if truth.new_seeds else 0
    return tuple(seed + shift for seed in truth.seeds)


def edited(m: Measurements, change: Callable[[TrialData], TrialData | None]) -> Measurements:
    """The same measurements with every trial passed through `change`; None removes it."""
    return msgspec.structs.replace(m, trials=[new for t in m.trials if (new := change(t)) is not None])


def with_requests(trial: TrialData, change: Callable[[ms.RequestRecord], ms.RequestRecord]) -> TrialData:
    """The trial with every request passed through `change`."""
    return msgspec.structs.replace(trial, requests=[change(r) for r in trial.requests])


def with_record(trial: TrialData, **fields: object) -> TrialData:
    """The trial with fields of its record replaced."""
    return msgspec.structs.replace(trial, record=msgspec.structs.replace(trial.record, **fields))


def _run(asked: scenario.Scenario, blocks: list[plan.Block]) -> ms.RunRecord:
    return ms.RunRecord(
        format=ms.FORMAT,
        kit_version="0",
        kit_commit=None,
        created_unix_s=0.0,
        scenario=msgspec.to_builtins(asked),
        scenario_sha256=scenario.fingerprint(asked),
        engine="process",
        blocks=[msgspec.to_builtins(b) for b in blocks],
        workloads=[
            ms.WorkloadRecord(dataset=d, seed=s, sha256=_sha(d, s), requests=16, shared_prefix_tokens=0)
            for d in asked.datasets
            for s in asked.sweep.seeds
        ],
    )


def _sitting(number: int) -> ms.SittingRecord:
    return ms.SittingRecord(number=number, boot_id=f"boot-{number}", started_unix_s=0.0, host=ms.Host(cores=2))


def _server(truth: Truth, leg: plan.Leg) -> ms.ServerRecord:
    arm = truth.arms[leg.arm]
    pools = [ms.Pool(role="target", tokens=arm.pool_tokens)]
    pools += [ms.Pool(role="draft", tokens=arm.pool_tokens)] if arm.draft else []
    facts = ms.ServerFacts(
        version=truth.version,
        device=truth.device,
        pool_tokens=arm.pool_tokens,
        pools=pools,
        loads=[ms.Load(model_type="Qwen3ForCausalLM", memory_gib=15.27, available_gib=6.6)],
        max_running_requests=arm.max_running,
        max_running_requests_asked=arm.max_running_asked,
        cap_warning=arm.cap_warning,
        graph_max_batch=arm.graph_max_batch,
        load_format=truth.load_format,
        mem_fraction_static=0.85,
        algorithm=arm.algorithm or ("EAGLE3" if arm.draft else None),
        draft_tokens=4 if arm.accept_length else None,
        draft_steps=3 if arm.accept_length else None,
        forced_accept_length=arm.forced_accept_length,
    )
    return ms.ServerRecord(
        leg=leg.id, arm=leg.arm, start=1, argv=["-m", "sglang.launch_server"], env={}, facts=facts,
        ready_after_s=10.0, started_unix_s=0.0,
    )  # fmt: skip


def _trial(truth: Truth, trial: plan.Trial, sitting: int, slow: float) -> TrialData:
    arm = truth.arms[trial.arm]
    users = trial.point.concurrency or max(truth.concurrency)
    speed = truth.speeds.get((trial.arm, trial.point.dataset), arm.speed)
    token_s = truth.token_s / (speed(users) if callable(speed) else speed) * slow
    fit = max(1, arm.pool_tokens // (truth.input_len + truth.output_len))
    running = min(users, fit, arm.max_running)
    requests, busy = [], [0.0] * running
    for index in range(trial.requests):
        slot = int(np.argmin(busy))
        sent = max(0.0, sorted(r.done_s or 0.0 for r in requests)[-users]) if index >= users else 0.0
        begins = max(busy[slot], sent)
        request = _request(truth, arm, trial, index, sent, begins, token_s, truth.prefill_s * slow)
        busy[slot] = request.done_s or 0.0
        requests.append(request)
    waiting = max(0, min(users, trial.requests) - running)
    ceiling = arm.graph_max_batch
    record = ms.TrialRecord(
        trial=trial.name, leg=trial.leg, arm=trial.arm, dataset=trial.point.dataset,
        concurrency=trial.point.concurrency, rate_per_s=trial.point.rate_per_s, seed=trial.seed,
        requests=trial.requests, workload_sha256=_sha(trial.point.dataset, trial.seed), server_start=1,
        started_unix_s=0.0, zero_monotonic_s=0.0, flush=ms.Flush(tries=1, status=200, seconds=0.01),
        watch=ms.ClientWatch(lag_p50_s=1e-5, lag_p99_s=1e-4, lag_max_s=1e-3, in_flight_share=1.0, cpu_share=0.1),
        log=ms.LogCounts(
            decode_lines=100, eager_decode_lines=100 if ceiling is not None and running > ceiling else 0,
            max_running=running, mean_running=float(running), max_queue=waiting, mean_queue=float(waiting),
            max_token_usage=min(1.0, running / fit), cached_tokens=0,
        ),
        avg_spec_accept_length=arm.accept_length,
    )  # fmt: skip
    return TrialData(record, requests, [], sitting)


def _request(
    truth: Truth, arm: ArmTruth, trial: plan.Trial, index: int, sent: float, begins: float, token_s: float, first: float
) -> ms.RequestRecord:
    sizes = _chunk_sizes(truth.output_len, arm.accept_length or 1.0)
    times = (begins + first + token_s * _tokens_before(sizes)).tolist()
    answer = f"{trial.point.dataset} {trial.seed} {index} {trial.arm if arm.other_answers else ''}"
    steps = len(sizes) - 1
    return ms.RequestRecord(
        index=index, scheduled_s=sent, sent_s=sent,
        chunks=list(zip(times, sizes, strict=True)), first_text_s=times[0],
        done_s=times[-1], prompt_tokens=truth.input_len, completion_tokens=truth.output_len, cached_tokens=0,
        retractions=0, finish_reason="length", output_sha256=hashlib.sha256(answer.encode()).hexdigest(),
        spec=ms.SpecCounters(verify_steps=steps, correct_drafts=truth.output_len - 1 - steps)
        if arm.accept_length else None,
    )  # fmt: skip


@cache
def _chunk_sizes(tokens: int, accept_length: float) -> tuple[int, ...]:
    """One token from the prefill, then whole tokens whose running mean is the accept length."""
    sizes, given, carried = [1], 1, 0.0
    while given < tokens:
        carried += accept_length
        size = min(int(carried), tokens - given)
        carried -= int(carried)
        sizes.append(size)
        given += size
    return tuple(sizes)


@cache
def _tokens_before(sizes: tuple[int, ...]) -> np.ndarray:
    """How many tokens after the first chunk's each chunk ends."""
    return np.concatenate([[0], np.cumsum(sizes[1:])])


def _sha(dataset: str, seed: int) -> str:
    return hashlib.sha256(f"{dataset} {seed}".encode()).hexdigest()
