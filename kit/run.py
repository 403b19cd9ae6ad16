"""The order of events of a run: check, freeze, serve, warm up, flush, drive, record, resume. Knows not how any is done.

A run is made of blocks (`kit.plan`), blocks of legs (one server start of one arm), legs of trials. What is complete on
disk is never measured again. A block is finished on the machine, card and boot that began it: on another boot its
remaining work starts again as a whole in a new sitting, so that every A B A is one sitting's.
"""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kit import gpu, gpu_guard, measurements, plan
from kit.client.job import DriveJob
from kit.engine import Endpoint, Launch
from kit.errors import EngineLost, RunFailed
from kit.measurements import COMPLETE, DriveEnd, Measurements, RequestRecord, ServerRecord, TrialRecord
from kit.run_folder import (
    Progress,
    Run,
    Setup,
    freeze_all,
    measuring,
    open_run,
    recorded_blocks,
    sitting,
    workload_path,
)
from kit.scenario import Scenario
from kit.sglang import api, experts, launch, log

GPU_ATTEMPTS = 3
"""A trial in which the card was lost is measured at most this often, then marked void."""
CARD_FAILED = "the card failed"


class Strategy(Protocol):
    """Which blocks to measure, and whether more are wanted once they are; `kit.adaptive` has them.

    `looks` is how often a verdict may be taken on growing data; `extends` says that a finished run is gone on with.
    """

    looks: int
    extends: bool

    def first(self, scenario: Scenario) -> tuple[plan.Block, ...]:
        """The blocks of a new run."""
        ...

    def then(self, m: Measurements, blocks: tuple[plan.Block, ...]) -> plan.Block | None:
        """One more block in the light of what was measured; None when the question is answered or the limit reached."""
        ...


class Whole:
    """The whole sweep and nothing more."""

    looks = 1
    extends = False

    def first(self, scenario: Scenario) -> tuple[plan.Block, ...]:
        """All points and seeds."""
        return plan.blocks(scenario)

    def then(self, m: Measurements, blocks: tuple[plan.Block, ...]) -> plan.Block | None:
        """Nothing."""
        return None


WHOLE = Whole()


class _Serving(msgspec.Struct, frozen=True):
    """A server under way: where its leg lies on disk, its endpoint, its growing log and what it said of itself."""

    running: Run
    place: Path
    endpoint: Endpoint
    name: str
    log_path: Path
    server: ServerRecord

    def info(self) -> dict[str, Any]:
        """What the server says of itself, once it is sure that it is ours."""
        return api.own_info(self.endpoint, self.name, self.running.scenario.server.port, self.log_path)


def run(setup: Setup, progress: Progress, strategy: Strategy = WHOLE) -> Path:
    """Measures what is not measured yet and returns the run's folder.

    Raises UnusableInput before anything is started, RunFailed (what was measured is kept) afterwards.
    """
    with measuring(setup.lock):
        return _run(setup, progress, strategy, check(setup, progress))


def _run(setup: Setup, progress: Progress, strategy: Strategy, facts: dict[str, str]) -> Path:
    with open_run(setup, strategy.extends, progress) as folder:
        blocks = recorded_blocks(folder) or strategy.first(setup.scenario)
        workloads = freeze_all(setup, folder, blocks, strategy.looks, facts, progress)
        with gpu_guard.hold_lock(setup.scenario.gpu, setup.indexes, setup.state, setup.no_lock) as lock:
            place = sitting(Run(folder, setup, progress, workloads), lock, facts)
            _run_blocks(Run(folder, setup, progress, workloads), place, blocks)
            while more := strategy.then(measurements.read(folder), blocks):
                progress.say(f"block {more.number}: what is open wants more data")
                blocks = (*blocks, more)
                workloads = freeze_all(setup, folder, blocks, strategy.looks, facts, progress)
                _run_blocks(Run(folder, setup, progress, workloads), place, blocks)
        measurements.seal(folder)
    return folder


def check(setup: Setup, progress: Progress) -> dict[str, str]:
    """All that can be known before the first second of GPU time; leftovers of killed runs are removed first."""
    for removed in [*setup.engine.clean(), *gpu_guard.release_stale(setup.state)]:
        progress.say(f"left over from an earlier run: {removed}")
    return setup.engine.check(setup.scenario.server.port)


# ---- blocks, legs, trials -------------------------------------------------------------------------------------------


def _run_blocks(running: Run, place: Path, blocks: tuple[plan.Block, ...]) -> None:
    """Measures what is open of the blocks, in this sitting's folder."""
    todo = [todo for block in blocks for todo in _open_legs(running, place, block)]
    running.progress.expect(sum(len(trials) for _, trials in todo), len(todo))
    for leg, trials in todo:
        _run_leg(running, place, leg, trials)


def _open_legs(running: Run, here: Path, block: plan.Block) -> list[tuple[plan.Leg, list[plan.Trial]]]:
    """The legs of a block with the trials that are still to be measured on each, in order."""
    left = _open_trials(running, here, block)
    legs = [(leg, [t for t in leg.trials if t in left]) for leg in block.legs]
    return [(leg, trials) for leg, trials in legs if trials]


def _open_trials(running: Run, here: Path, block: plan.Block) -> set[plan.Trial]:
    """The trials of a block that are still to be measured in this sitting; none when another sitting has the block."""
    trials = {t for leg in block.legs for t in leg.trials}
    for place in running.folder.glob("sitting-*"):
        left = {t for t in trials if not (place / t.leg / t.name / COMPLETE).exists()}
        if not left or place == here:
            return left
    return trials


def _run_leg(running: Run, here: Path, leg: plan.Leg, trials: list[plan.Trial]) -> None:
    """One start of one server and the open trials on it."""
    place = here / leg.id
    start = 1 + len(list(place.glob("server*.log")))
    what = _launch(running, leg, place / f"server{_suffix(start)}.log")
    name = f"{leg.id}-{secrets.token_hex(6)}"  # two runs at once must not take each other's server for their own
    started = msgspec.structs.replace(what, argv=api.named(what.argv, name))
    running.progress.say(f"{leg.id}: starting the server")
    began_unix_s = time.time()
    try:
        with running.setup.engine.serve(started) as endpoint:
            ready_after_s = api.wait_until_generates(endpoint, what.log, running.scenario.server.start_timeout_s)
            info = api.own_info(endpoint, name, running.scenario.server.port, what.log)
            record = _record_server(running, leg, what, start, ready_after_s, began_unix_s, info)
            running.progress.say(f"{leg.id}: {_pool_line(record)} (ready after {ready_after_s:.0f} s)")
            running.progress.started(time.time() - began_unix_s)
            serving = _Serving(running, place, endpoint, name, what.log, record)
            for trial in trials:
                _run_trial(serving, trial)
    finally:
        if what.log.exists():
            running.setup.scrubber.scrub_file(what.log)


def _suffix(start: int) -> str:
    return "" if start == 1 else f"-{start}"


def _launch(running: Run, leg: plan.Leg, log_path: Path) -> Launch:
    setup, scenario = running.setup, running.scenario
    log_path.parent.mkdir(parents=True, exist_ok=True)
    return Launch(
        argv=launch.arguments(scenario, leg.arm, setup.model_path, setup.draft_path, scenario.server.port),
        env={**setup.env, **launch.environment(scenario, leg.arm), **_recorder(running, log_path)},
        models=[p for p in (setup.model_path, setup.draft_path) if p],
        workloads=running.folder / "workloads",
        log=log_path,
        port=scenario.server.port,
        label=f"{scenario.name}-{running.folder.name}-{leg.id}",
    )


def _record_server(
    running: Run,
    leg: plan.Leg,
    what: Launch,
    start: int,
    ready_after_s: float,
    began_unix_s: float,
    info: dict[str, Any],
) -> ServerRecord:
    """Reads pool and limits from log and /server_info, cross-checked, and records both.

    The name by which the server is known is of this start alone and stays out of the recorded arguments.
    """
    scrub = running.setup.scrubber.scrub
    record = ServerRecord(
        leg=leg.id,
        arm=leg.arm,
        start=start,
        argv=[scrub(a) for a in what.argv],
        env={key: scrub(value) for key, value in what.env.items() if key != "PATH"},
        facts=api.facts(what.log.read_text(errors="replace"), info, what.env),
        ready_after_s=ready_after_s,
        started_unix_s=began_unix_s,
    )
    place = what.log.parent
    measurements.write_record(place / f"server{_suffix(start)}.json", record)
    said = scrub(msgspec.json.encode(info).decode()).encode()
    measurements.write_whole(place / f"server_info{_suffix(start)}.json", msgspec.json.format(said, indent=1))
    api.check_algorithm(launch.flags(running.scenario, leg.arm).get("speculative-algorithm"), record.facts)
    return record


def _pool_line(record: ServerRecord) -> str:
    facts = record.facts
    return f"pool {facts.pool_tokens or 'n/a'} tokens, at most {facts.max_running_requests or 'n/a'} running requests"


def _run_trial(serving: _Serving, trial: plan.Trial) -> None:
    """Measures one trial, again when the card was lost in it, and marks it complete last."""
    folder = serving.place / trial.name
    serving.running.progress.trial(trial.id, None)
    began = time.monotonic()
    for attempt in range(1, GPU_ATTEMPTS + 1):
        _set_aside(folder)
        record = _measure(serving, folder, trial, attempt)
        measurements.write_record(folder / "trial.json", record)
        if not (record.void or "").startswith(CARD_FAILED):
            break
    measurements.seal(folder)
    serving.running.progress.trial(trial.id, time.monotonic() - began)


def _set_aside(folder: Path) -> None:
    """Keeps what an interrupted or void attempt measured, under another name: nothing measured is lost."""
    if not (folder / "requests.jsonl").exists():
        return
    aside = folder / f"aside-{1 + len(list(folder.glob('aside-*')))}"
    aside.mkdir()
    for name in ("requests.jsonl", "gpu.jsonl", "trial.json"):
        if (folder / name).exists():
            (folder / name).rename(aside / name)


def _measure(serving: _Serving, folder: Path, trial: plan.Trial, attempt: int) -> TrialRecord:
    """Warm up, flush, drive, read the counters: the order that the whole kit exists for."""
    running, endpoint, log_path = serving.running, serving.endpoint, serving.log_path
    folder.mkdir(parents=True, exist_ok=True)
    with gpu.Sampler(running.setup.indexes, folder / "gpu.jsonl", running.setup.client_cores) as sampler:
        if trial.warmup_requests:
            _drive(folder, endpoint, _job(running, trial, warmup=True))
        flushed, job = api.flush(endpoint), _job(running, trial, warmup=False)
        log_from, started_unix_s = log_path.stat().st_size, time.time()
        with _experts(serving, folder):
            end, failed = _drive(folder, endpoint, job)
        info = serving.info()
    return TrialRecord(
        trial=trial.name,
        leg=trial.leg,
        arm=trial.arm,
        dataset=trial.point.dataset,
        concurrency=trial.point.concurrency,
        rate_per_s=trial.point.rate_per_s,
        seed=trial.seed,
        requests=trial.requests,
        workload_sha256=running.workloads[trial.point.dataset, trial.seed].sha256,
        server_start=serving.server.start,
        started_unix_s=started_unix_s,
        zero_monotonic_s=end.zero_monotonic_s,
        flush=flushed,
        watch=end.watch,
        log=log.counts(_read_from(log_path, log_from), bool(serving.server.facts.graphs)),
        avg_spec_accept_length=api.avg_accept_length(info),
        attempt=attempt,
        sampling={**job.sampling, "ignore_eos": job.ignore_eos},
        void=_void(running, trial, sampler.errors, failed, end),
    )


def _recorder(running: Run, log_path: Path) -> dict[str, str]:
    """Where the server writes its expert counts, in a scenario that records them."""
    return {experts.FOLDER: str(log_path.parent / "experts")} if running.scenario.record == "experts" else {}


@contextmanager
def _experts(serving: _Serving, folder: Path) -> Iterator[None]:
    """Counts the experts of what is driven meanwhile, in a scenario that records them."""
    if serving.running.scenario.record != "experts":
        yield
        return
    with experts.recording(serving.endpoint):
        yield
    tokens = experts.take(serving.place / "experts")
    measurements.write_record(folder / "experts.json", measurements.ExpertRecord(tokens=tokens))


def _void(running: Run, trial: plan.Trial, card_errors: list[str], failed: int, end: DriveEnd) -> str | None:
    """Why the trial must not be used, in a few words; None when it may."""
    if running.scenario.record == "experts":
        return "not timed: the expert recorder was on"
    if card_errors:
        return f"{CARD_FAILED}: {'; '.join(card_errors)}"
    if end.aborted:
        return f"the client gave up: {end.aborted}"
    limit = running.scenario.limits.failed_share
    if failed > limit * trial.requests:
        return f"{failed} of {trial.requests} requests failed (limit {limit:.0%})"
    return None


def _job(running: Run, trial: plan.Trial, warmup: bool) -> DriveJob:
    scenario = running.scenario
    dataset = scenario.datasets[trial.point.dataset]
    warm_users = trial.point.concurrency or max(scenario.sweep.concurrency)
    return DriveJob(
        host="",
        port=scenario.server.port,
        workload=str(workload_path(running.folder, trial.point.dataset, trial.seed)),
        requests=trial.warmup_requests if warmup else trial.requests,
        concurrency=warm_users if warmup else trial.point.concurrency,
        phase="warmup" if warmup else "measure",
        output_len=scenario.sweep.warmup_output_len if warmup else None,
        rate_per_s=None if warmup else trial.point.rate_per_s,
        seed=trial.seed,
        ignore_eos=dataset.ignore_eos,
        request_timeout_s=scenario.limits.request_timeout_s,
        silence_timeout_s=scenario.limits.silence_timeout_s,
    )


def _drive(folder: Path, endpoint: Endpoint, job: DriveJob) -> tuple[DriveEnd, int]:
    """Runs the client and appends its records as they arrive; returns its last word and the number of failures."""
    name = f"{folder.parent.name}/{folder.name}"
    decoder = msgspec.json.Decoder(RequestRecord | DriveEnd)
    end, failed = None, 0
    with (folder / "requests.jsonl").open("ab") as file:
        for line in endpoint.drive(job):
            record = decoder.decode(line)
            if isinstance(record, DriveEnd):
                end = record
                continue
            file.write(line.rstrip(b"\n") + b"\n")
            file.flush()
            failed += record.error is not None
        os.fsync(file.fileno())
    if end is None:
        raise EngineLost(
            f"{name}: the client ended without its last line; what it measured is kept, run again to go on"
        )
    if job.phase == "warmup" and failed == job.requests:
        raise RunFailed(f"{name}: every warm-up request failed; the reasons stand in its requests.jsonl")
    return end, failed


def _read_from(path: Path, start: int) -> str:
    with path.open("rb") as file:
        file.seek(start)
        return file.read().decode(errors="replace")
