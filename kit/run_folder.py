"""Where a run lies on disk: finding the unfinished one, freezing its workloads, its sittings. Starts no server."""

import fcntl
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgspec

from kit import __version__, gpu, measurements, plan
from kit.engine import Engine
from kit.errors import UnusableInput
from kit.measurements import (
    COMPLETE,
    GpuFacts,
    Host,
    LockRecord,
    RunRecord,
    SelfTest,
    SittingRecord,
    WorkloadRecord,
)
from kit.scenario import Scenario, fingerprint
from kit.scrub import Scrubber


class Progress(Protocol):
    """Where a run tells what it does; `kit.progress` draws it."""

    def say(self, text: str) -> None:
        """One line of news."""
        ...

    def expect(self, trials: int, starts: int) -> None:
        """How many trials and server starts are still to come."""
        ...

    def started(self, seconds: float) -> None:
        """A server start took so many seconds."""
        ...

    def trial(self, name: str, seconds: float | None) -> None:
        """A trial begins (`seconds` None) or ended after so many seconds."""
        ...


class Freeze(Protocol):
    """Freezes one workload into `path`; bound to the tokenizer and the data folders by `kit.setup`."""

    def __call__(self, dataset: str, seed: int, requests: int, path: Path) -> WorkloadRecord:
        """Writes the file and says what was drawn."""
        ...


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run needs from its surroundings, put together by `kit.setup`.

    `lock` is the file that one run on this machine holds while it measures; None: no other run is looked for.
    """

    scenario: Scenario
    engine: Engine
    freeze: Freeze
    selftest: SelfTest | None
    model_path: Path
    draft_path: Path | None
    env: dict[str, str] = {}
    results: Path
    state: Path
    scrubber: Scrubber
    cards: list[GpuFacts] = []
    cards_note: str = ""
    indexes: list[int] = []
    client_cores: list[int] = []
    no_lock: bool = False
    unpinned: bool = False
    commit: str | None = None
    like: str | None = None
    lock: Path | None = None


class Run(msgspec.Struct, frozen=True):
    """A run under way: its folder, its setup and where it tells of itself."""

    folder: Path
    setup: Setup
    progress: Progress
    workloads: dict[tuple[str, int], WorkloadRecord]

    @property
    def scenario(self) -> Scenario:
        """The scenario that is run."""
        return self.setup.scenario


# ---- one run at a time ----------------------------------------------------------------------------------------


@contextmanager
def measuring(lock: Path | None) -> Iterator[None]:
    """Holds the machine for one run: two at once would disturb each other's figures. Raises UnusableInput."""
    if lock is None:
        yield
        return
    try:
        file = os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
    except OSError as error:
        raise UnusableInput(f"{lock}: the lock of running measurements: {error.strerror}; remove it") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = file.read().strip() or "not yet known"
            raise UnusableInput(
                f"another run is measuring on this machine (pid {pid}), and both would disturb each other; "
                "wait for it or stop it"
            ) from None
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


# ---- the folder -----------------------------------------------------------------------------------------------


@contextmanager
def open_run(setup: Setup, extends: bool, progress: Progress) -> Iterator[Path]:
    """The folder of the unfinished run of this very scenario, or a new one; held against a second runner.

    With `extends` the newest run is gone on with although it is finished: its seal is taken off. A folder in which
    nothing came to be recorded is removed again. Raises UnusableInput when it cannot be made.
    """
    home = setup.results / setup.scenario.name
    try:
        home.mkdir(parents=True, exist_ok=True)
        found = _same_run(home, setup, extends)
        folder = found or _new_folder(home)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise UnusableInput(f"{error.filename or home}: no place for results: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnusableInput(
                f"{folder.name}: another runner is at work on this run; wait for it or stop it"
            ) from None
        (folder / COMPLETE).unlink(missing_ok=True)
        progress.say(_opening(folder) if found else f"new run {folder.name}")
        try:
            yield folder
        finally:
            if not (folder / "run.json").exists():
                shutil.rmtree(folder)
                with suppress(OSError):  # it holds other runs
                    home.rmdir()


def _opening(folder: Path) -> str:
    measured = len(list(folder.glob(f"sitting-*/*/*/{COMPLETE}")))
    return f"going on with run {folder.name}: {measured} trial{'s are' if measured != 1 else ' is'} measured"


def _same_run(home: Path, setup: Setup, extends: bool) -> Path | None:
    """The newest run of the same scenario, engine, workloads and kind of card in which something is left to do."""
    for folder in sorted((p.parent for p in home.glob("*/run.json")), reverse=True):
        open_ = extends or not (folder / COMPLETE).exists()
        if open_ and _matches(folder, setup):
            return folder
    return None


def _matches(folder: Path, setup: Setup) -> bool:
    """Whether what is missing in a run can be measured with this setup; damage is no run to go on with."""
    try:
        record = measurements.read_record(folder / "run.json", RunRecord)
        sittings = [measurements.read_record(p, SittingRecord) for p in folder.glob("sitting-*/sitting.json")]
    except UnusableInput:
        return False
    same_cards = all([g.name for g in s.gpus] == [c.name for c in setup.cards] for s in sittings)
    asked = (measurements.FORMAT, fingerprint(setup.scenario), setup.engine.name, setup.like)
    return same_cards and (record.format, record.scenario_sha256, record.engine, record.like) == asked


def _new_folder(home: Path) -> Path:
    while True:
        folder = home / time.strftime("%Y-%m-%d-%H%M%S", time.gmtime())
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # folders are named by the second
            time.sleep(0.1)


def recorded_blocks(folder: Path) -> tuple[plan.Block, ...]:
    """The blocks that run.json names; none when the run is new."""
    path = folder / "run.json"
    if not path.exists():
        return ()
    return tuple(msgspec.convert(b, plan.Block) for b in measurements.read_record(path, RunRecord).blocks)


def freeze_all(
    setup: Setup, folder: Path, blocks: tuple[plan.Block, ...], looks: int, facts: dict[str, str], progress: Progress
) -> dict[tuple[str, int], WorkloadRecord]:
    """Freezes every workload the blocks need (once; later runs check the hash) and writes run.json."""
    needs: dict[tuple[str, int], int] = {}
    for trial in (t for b in blocks for leg in b.legs for t in leg.trials):
        key = (trial.point.dataset, trial.seed)
        needs[key] = max(needs.get(key, 0), trial.requests, trial.warmup_requests)
    known = {(w.dataset, w.seed): w for w in _recorded_workloads(folder)}
    records = {}
    for (dataset, seed), count in needs.items():
        path = workload_path(folder, dataset, seed)
        records[dataset, seed] = known.get((dataset, seed)) or setup.freeze(dataset, seed, count, path)
        _check_frozen(path, records[dataset, seed])
    _write_run(setup, folder, blocks, looks, {**known, **records}, facts)
    progress.say(f"{len(records)} workloads frozen")
    return records


def _recorded_workloads(folder: Path) -> list[WorkloadRecord]:
    path = folder / "run.json"
    return measurements.read_record(path, RunRecord).workloads if path.exists() else []


def _check_frozen(path: Path, record: WorkloadRecord) -> None:
    if hashlib.sha256(path.read_bytes()).hexdigest() != record.sha256:
        raise UnusableInput(f"workloads/{path.name}: changed since it was frozen; start a new run (move this one away)")


def workload_path(folder: Path, dataset: str, seed: int) -> Path:
    """The file of a frozen workload."""
    return folder / "workloads" / f"{dataset}-s{seed}.jsonl"


def _write_run(
    setup: Setup,
    folder: Path,
    blocks: tuple[plan.Block, ...],
    looks: int,
    workloads: dict[tuple[str, int], WorkloadRecord],
    facts: dict[str, str],
) -> None:
    path = folder / "run.json"
    before = measurements.read_record(path, RunRecord) if path.exists() else None
    record = RunRecord(
        format=measurements.FORMAT,
        kit_version=__version__,
        kit_commit=setup.commit,
        created_unix_s=before.created_unix_s if before else time.time(),
        scenario=msgspec.to_builtins(setup.scenario),
        scenario_sha256=fingerprint(setup.scenario),
        engine=setup.engine.name,
        image={key: value for key, value in facts.items() if key.startswith("image")},
        unpinned=setup.unpinned,
        blocks=[msgspec.to_builtins(b) for b in blocks],
        looks_planned=max(looks, before.looks_planned if before else 1),
        workloads=list(workloads.values()),
        like=setup.like,
    )
    measurements.write_record(path, record)


# ---- sittings -------------------------------------------------------------------------------------------------------


def sitting(running: Run, lock: LockRecord, facts: dict[str, str]) -> Path:
    """The folder of the sitting on this boot and these cards: the last one goes on, or a new one begins."""
    boot, gpus = gpu.boot_id(), running.setup.cards
    places = sorted(running.folder.glob("sitting-*"), key=lambda p: int(p.name.partition("-")[2]))
    if places:
        last = measurements.read_record(places[-1] / "sitting.json", SittingRecord)
        if last.boot_id == boot and [(g.uuid, g.driver) for g in last.gpus] == [(g.uuid, g.driver) for g in gpus]:
            return places[-1]
        running.progress.say("another boot or card than last time: a new sitting, with whole blocks")
    place = running.folder / f"sitting-{len(places) + 1}"
    record = SittingRecord(
        number=len(places) + 1,
        boot_id=boot,
        started_unix_s=time.time(),
        host=_host(),
        gpus=gpus,
        gpu_note=running.setup.cards_note,
        lock=lock,
        selftest=running.setup.selftest,
        engine=facts,
    )
    measurements.write_record(place / "sitting.json", record)
    return place


def _host() -> Host:
    """The machine without names: processor, cores, memory, kernel."""
    cpu = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition(":")[2].partition("\n")[0].strip()
    return Host(
        cpu=cpu or None,
        cores=os.cpu_count(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        system=platform.system(),
        python=platform.python_version(),
        in_container=Path("/.dockerenv").exists() or "docker" in Path("/proc/1/cgroup").read_text(),
    )
