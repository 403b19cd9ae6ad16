"""Records of a run, their format version, and how they are appended and read. Knows nothing of what they mean.

    results/<scenario>/<run>/
      run.json                         RunRecord
      workloads/<dataset>-s<seed>.jsonl
      sitting-<n>/sitting.json         SittingRecord: one boot of one machine with one set of cards
        <leg>/server.json server.log server_info.json          (a restart within a leg adds server-2.json and so on)
          <trial>/trial.json requests.jsonl gpu.jsonl complete   (experts.json in a scenario that records experts)

A `complete` marker is written last and holds the sha256 of what it seals, one `hash  name` a line: a trial's marker its
records, the run's marker everything else and the trials' markers. A published folder may hold a .jsonl or .log file
packed as .gz; hashes are always those of the unpacked bytes.

Times within a trial are seconds since the trial's zero on the client's monotonic clock; `zero_monotonic_s` places it
on the machine's CLOCK_MONOTONIC, which client, sampler and runner share. Missing is null, never 0 or 1.

Format history
  1  first
"""

import gzip
import hashlib
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from kit.errors import UnusableInput

FORMAT = 1
COMPLETE = "complete"
PACKED = ".gz"
RECORDS = (".json", ".jsonl", ".log")
HASHED = re.compile(r"([0-9a-f]{64})  (\S.*)")
"""A line of a marker or a manifest: the hash and the file's name."""
R = TypeVar("R")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records: read-only; unknown fields of a later format are skipped when read."""


# ---- one request ----------------------------------------------------------------------------------------------------


class RequestError(Record, frozen=True, kw_only=True):
    """Why a request failed. `kind` is one word of the client (http_status, reset, truncated, silence, timeout, ...)."""

    kind: str
    detail: str
    status: int | None = None


class SpecCounters(Record, frozen=True, kw_only=True, gc=False):
    """The server's speculation counters of one request; None where its version does not report one."""

    verify_steps: int | None = None
    correct_drafts: int | None = None
    proposed_drafts: int | None = None
    accept_length: float | None = None


class RequestRecord(Record, frozen=True, kw_only=True, tag="request", gc=False):
    """One request as the client saw it. `chunks` holds (seconds, tokens carried) of each chunk that carried tokens.

    Where a gateway gives no usage with its chunks, their tokens are unknown: `chunks` is empty then and `uncounted_s`
    holds the times of the chunks that carried output.
    """

    index: int
    warmup: bool = False
    scheduled_s: float | None = None
    sent_s: float | None = None
    chunks: list[tuple[float, int]] = []
    uncounted_s: list[float] = []
    first_text_s: float | None = None
    done_s: float | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    retractions: int | None = None
    spec: SpecCounters | None = None
    finish_reason: str | None = None
    output_sha256: str | None = None
    server_e2e_s: float | None = None
    error: RequestError | None = None


class ClientWatch(Record, frozen=True, kw_only=True):
    """What the client saw of itself while it drove a trial; shares are 0 to 1, lags in seconds."""

    lag_p50_s: float | None = None
    lag_p99_s: float | None = None
    lag_max_s: float | None = None
    in_flight_share: float | None = None
    cpu_share: float | None = None
    chunks: int = 0
    cores: list[int] = []


class DriveEnd(Record, frozen=True, kw_only=True, tag="end"):
    """The client's last line: the trial's zero and its own watch. `aborted` says why the client gave the trial up."""

    zero_monotonic_s: float
    zero_unix_s: float
    watch: ClientWatch
    aborted: str | None = None


ClientLine: TypeAlias = RequestRecord | DriveEnd


# ---- the card -------------------------------------------------------------------------------------------------------


class GpuFacts(Record, frozen=True, kw_only=True):
    """One card as NVML describes it at the start of a sitting. None: the card or its driver does not say."""

    index: int
    name: str | None = None
    uuid: str | None = None
    driver: str | None = None
    cuda: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    sm_clocks_mhz: list[int] = []
    memory_clock_max_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    ecc: bool | None = None
    mig: bool | None = None
    persistence: bool | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    compute_capability: str | None = None
    foreign_processes: list[int] = []


class GpuSample(Record, frozen=True, kw_only=True, gc=False):
    """One reading of one card. `monotonic_s` is the machine's CLOCK_MONOTONIC; `reasons` are NVML clock-event bits.

    `processes` are the compute processes on the card, read once a second: None in the samples between.
    """

    monotonic_s: float
    index: int
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    reasons: int | None = None
    power_w: float | None = None
    energy_j: float | None = None
    temperature_c: int | None = None
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    processes: list[int] | None = None
    error: str | None = None


class LockRecord(Record, frozen=True, kw_only=True):
    """What was asked of the clock lock, what was set and what came of it: locked, off, refused or unsupported."""

    asked: str = "off"
    asked_mhz: int | None = None
    set_mhz: int | None = None
    state: str = "off"
    detail: str = ""


# ---- the server -----------------------------------------------------------------------------------------------------


class Pool(Record, frozen=True, kw_only=True):
    """One KV pool as the start-up log prints it; sizes in GiB. `role` is target or draft, by the log's order."""

    role: str
    tokens: int
    k_gib: float | None = None
    v_gib: float | None = None
    kv_gib: float | None = None
    dtype: str | None = None


class Load(Record, frozen=True, kw_only=True):
    """One `Load weight end` line: GiB as the server says them."""

    model_type: str
    memory_gib: float
    available_gib: float
    seconds: float | None = None


class Graph(Record, frozen=True, kw_only=True):
    """One captured set of CUDA graphs: its name, batch sizes, seconds and GiB."""

    name: str
    batch_sizes: list[int] = []
    seconds: float | None = None
    memory_gib: float | None = None


class ServerFacts(Record, frozen=True, kw_only=True):
    """What a server says of itself in its log and in /server_info, cross-checked. Tokens, requests, GiB."""

    version: str | None = None
    device: str | None = None
    pool_tokens: int | None = None
    pools: list[Pool] = []
    loads: list[Load] = []
    graphs: list[Graph] = []
    max_running_requests: int | None = None
    max_running_requests_asked: int | None = None
    cap_warning: bool = False
    chunked_prefill_tokens: int | None = None
    context_tokens: int | None = None
    available_gib: float | None = None
    graph_max_batch: int | None = None
    kv_dtype: str | None = None
    page_size: int | None = None
    mem_fraction_static: float | None = None
    max_total_tokens_asked: int | None = None
    load_format: str | None = None
    algorithm: str | None = None
    draft_tokens: int | None = None
    draft_steps: int | None = None
    forced_accept_length: float | None = None
    random_seed: int | None = None
    mismatches: list[str] = []
    unknown_version: bool = False


class ServerRecord(Record, frozen=True, kw_only=True):
    """One start of one arm's server. `argv` and `env` are as given, with folders of this machine named, not spelled."""

    leg: str
    arm: str
    start: int
    argv: list[str]
    env: dict[str, str]
    facts: ServerFacts
    ready_after_s: float
    started_unix_s: float


class LogCounts(Record, frozen=True, kw_only=True):
    """What the server's log says of one trial: from the decode, prefill and retraction lines between two offsets."""

    decode_lines: int = 0
    eager_decode_lines: int = 0
    max_running: int | None = None
    mean_running: float | None = None
    max_queue: int | None = None
    mean_queue: float | None = None
    max_token_usage: float | None = None
    retracted_requests: int = 0
    cached_tokens: int | None = None
    compiled: bool = False


class Flush(Record, frozen=True, kw_only=True):
    """How the flush before the trial went: tries, the last status and the seconds it took."""

    tries: int
    status: int
    seconds: float


class TrialRecord(Record, frozen=True, kw_only=True):
    """One trial. `void` names why its figures must not be used; `attempt` counts repeats of a void trial from 1.

    `sampling` is what was sent with every request.
    """

    trial: str
    leg: str
    arm: str
    dataset: str
    concurrency: int
    rate_per_s: float | None = None
    seed: int
    requests: int
    workload_sha256: str
    server_start: int
    started_unix_s: float
    zero_monotonic_s: float
    flush: Flush
    watch: ClientWatch
    log: LogCounts
    avg_spec_accept_length: float | None = None
    attempt: int = 1
    void: str | None = None
    sampling: dict[str, Any] = {}


class ExpertRecord(Record, frozen=True, kw_only=True):
    """Tokens that each expert of each layer got in a trial that was not timed: `tokens[layer][expert]`."""

    tokens: list[list[int]]


# ---- the run --------------------------------------------------------------------------------------------------------


class SelfTest(Record, frozen=True, kw_only=True):
    """The client against an echo of known schedule on this machine: errors in seconds, rate in chunks per second."""

    ttft_error_p99_s: float
    gap_error_p99_s: float
    trusted_chunks_per_s: float


class Host(Record, frozen=True, kw_only=True):
    """The machine, without its name or its user's."""

    cpu: str | None = None
    cores: int | None = None
    memory_bytes: int | None = None
    kernel: str | None = None
    system: str | None = None
    python: str | None = None
    in_container: bool | None = None


class SittingRecord(Record, frozen=True, kw_only=True):
    """One boot of one machine: runs of one sitting compare, runs of two are combined only as complete blocks."""

    number: int
    boot_id: str
    started_unix_s: float
    host: Host
    gpus: list[GpuFacts] = []
    gpu_note: str = ""
    lock: LockRecord = LockRecord()
    selftest: SelfTest | None = None
    engine: dict[str, str] = {}


class WorkloadRecord(Record, frozen=True, kw_only=True):
    """A frozen workload: what was drawn, what was dropped and why, and the hash of its file."""

    dataset: str
    seed: int
    sha256: str
    requests: int
    dropped: dict[str, int] = {}
    source_sha256: str | None = None
    tokenizer_sha256: str | None = None
    shared_prefix_tokens: int | None = None


class RunRecord(Record, frozen=True, kw_only=True):
    """The run's head: what was asked for, by which kit, with which image. `scenario` is the resolved scenario.

    `looks_planned` is how often `--until-decided` may look at most, fixed before the first look.
    """

    format: int
    kit_version: str
    kit_commit: str | None
    created_unix_s: float
    scenario: dict[str, Any]
    scenario_sha256: str
    engine: str
    image: dict[str, str] = {}
    unpinned: bool = False
    blocks: list[dict[str, Any]] = []
    looks_planned: int = 1
    workloads: list[WorkloadRecord] = []
    like: str | None = None


# ---- reading --------------------------------------------------------------------------------------------------------


class TrialData(msgspec.Struct, frozen=True):
    """A complete trial with its raw records; `requests` holds the measured ones, warm-ups stay on disk."""

    record: TrialRecord
    requests: list[RequestRecord]
    gpu: list[GpuSample]
    sitting: int
    experts: ExpertRecord | None = None


class Measurements(msgspec.Struct, frozen=True):
    """Everything a run's folder holds, as records; only complete trials are in `trials`.

    `finished`: all that was planned was measured, and the run was sealed.
    """

    run: RunRecord
    sittings: list[SittingRecord]
    servers: list[tuple[int, ServerRecord]]
    trials: list[TrialData]
    incomplete: list[str]
    finished: bool = True

    @property
    def planned(self) -> int:
        """Trials of all blocks."""
        return sum(len(leg["trials"]) for block in self.run.blocks for leg in block["legs"])

    @property
    def measured(self) -> int:
        """Complete trials of the plan: of each block in the sitting that has most of it, for blocks never mix them."""
        return sum(self._measured({leg["id"] for leg in block["legs"]}) for block in self.run.blocks)

    def _measured(self, legs: set[str]) -> int:
        found = {(t.sitting, t.record.leg, t.record.trial) for t in self.trials if t.record.leg in legs}
        return max(Counter(sitting for sitting, *_ in found).values(), default=0)


def read(folder: Path) -> Measurements:
    """Reads a run's folder. Raises UnusableInput that names the damaged or missing file; writes nothing."""
    run = read_record(folder / "run.json", RunRecord)
    if run.format > FORMAT:
        raise UnusableInput(
            f"{folder.name}/run.json: format {run.format} is newer than this kit reads ({FORMAT}); update the kit"
        )
    sittings, servers, trials, incomplete = [], [], [], []
    for place in sorted(folder.glob("sitting-*"), key=_sitting_number):
        sitting = read_record(place / "sitting.json", SittingRecord)
        sittings.append(sitting)
        servers += [(sitting.number, read_record(p, ServerRecord)) for p in sorted(place.glob("*/server*.json"))
                    if p.stem.removeprefix("server").lstrip("-").isdigit() or p.stem == "server"]  # fmt: skip
        for trial in sorted(p for p in place.glob("*/*") if p.is_dir()):
            if (trial / COMPLETE).exists():
                trials.append(read_trial(trial, sitting.number))
            else:
                incomplete.append(f"{place.name}/{trial.parent.name}/{trial.name}")
    return Measurements(run, sittings, servers, trials, incomplete, finished=(folder / COMPLETE).exists())


def _sitting_number(place: Path) -> int:
    number = place.name.partition("-")[2]
    if not (number.isascii() and number.isdigit()):
        raise UnusableInput(f"{place.parent.name}/{place.name}: no folder of this kit (sitting-1, ...); move it away")
    return int(number)


def read_trial(folder: Path, sitting: int) -> TrialData:
    """One complete trial; a missing gpu.jsonl is a machine without a card."""
    gpu = folder / "gpu.jsonl"
    return TrialData(
        read_record(folder / "trial.json", TrialRecord),
        [r for r in read_lines(folder / "requests.jsonl", RequestRecord) if not r.warmup],
        list(read_lines(gpu, GpuSample)) if gpu.exists() or packed(gpu).exists() else [],
        sitting,
        read_record(folder / "experts.json", ExpertRecord) if (folder / "experts.json").exists() else None,
    )


def read_record(path: Path, kind: type[R]) -> R:
    """One JSON record; raises UnusableInput that names the file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        raise UnusableInput(f"{_name(path)}: missing; the folder is no complete run of this kit") from None
    except OSError as error:
        raise UnusableInput(f"{_name(path)}: cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise UnusableInput(f"{_name(path)}: damaged: {error}") from None


def read_lines(path: Path, kind: type[R]) -> Iterator[R]:
    """Records of a .jsonl file; raises UnusableInput that names file and line."""
    decoder = msgspec.json.Decoder(kind)
    try:
        data = content(path)
    except FileNotFoundError:
        raise UnusableInput(f"{_name(path)}: missing from a trial that is marked complete") from None
    except OSError as error:
        raise UnusableInput(f"{_name(path)}: cannot be read: {error.strerror}") from None
    for number, line in enumerate(data.splitlines(), 1):
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise UnusableInput(f"{_name(path)}:{number}: damaged: {error}") from None


def packed(path: Path) -> Path:
    """Where a record file lies when it is packed."""
    return path.with_name(path.name + PACKED)


def content(path: Path) -> bytes:
    """The bytes of a record file, unpacked when only its .gz is there. Raises FileNotFoundError or UnusableInput."""
    if path.exists() or not packed(path).exists():
        return path.read_bytes()
    try:
        return gzip.decompress(packed(path).read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise UnusableInput(f"{_name(packed(path))}: damaged: {error}") from None


def sha256(data: bytes) -> str:
    """The hash by which records are told apart, hex."""
    return hashlib.sha256(data).hexdigest()


def seal(folder: Path) -> None:
    """Marks a trial's or a run's folder complete; the marker holds the hashes of what is in it."""
    lines = [f"{sha256(content(folder / name))}  {name}\n" for name in _sealable(folder)]
    write_whole(folder / COMPLETE, "".join(lines).encode())


def damage(folder: Path) -> list[str]:
    """What no longer is as it was sealed, in words: files of the run and of its trials. Empty: all is whole."""
    found = []
    for marker in sorted(folder.rglob(COMPLETE)):
        try:
            sealed = hashes(marker)
        except UnusableInput:
            found.append(f"{marker.relative_to(folder)} holds no hashes")
            continue
        states = ((marker.parent / name, _changed(marker.parent / name, digest)) for name, digest in sealed.items())
        found += [f"{path.relative_to(folder)} {state}" for path, state in states if state]
    return found + _added(folder)


def hashes(marker: Path) -> dict[str, str]:
    """The hashes of a marker or a manifest, by file name. Raises UnusableInput for anything else."""
    try:
        lines = [HASHED.fullmatch(line) for line in marker.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError):
        lines = [None]
    found = {line[2]: line[1] for line in lines if line and ".." not in Path(line[2]).parts and line[2][0] != "/"}
    if len(found) < len(lines):
        raise UnusableInput(f"{_name(marker)}: damaged: holds no hashes")
    return found


def _changed(path: Path, digest: str) -> str | None:
    """What is wrong with a sealed file, in words."""
    try:
        return None if sha256(content(path)) == digest else "was changed after it was written"
    except FileNotFoundError:
        return "is missing"
    except (OSError, UnusableInput):
        return "cannot be read"


def _added(folder: Path) -> list[str]:
    """Trials that lie in a finished run and were not there when it was sealed."""
    try:
        sealed = hashes(folder / COMPLETE)
    except UnusableInput:  # not finished, or damaged and named already
        return []
    trials = sorted(p.relative_to(folder).as_posix() for p in folder.glob(f"sitting-*/*/*/{COMPLETE}"))
    return [f"{name.removesuffix('/' + COMPLETE)} was added after the run was finished" for name in trials
            if name not in sealed]  # fmt: skip


def _sealable(folder: Path) -> list[str]:
    """Record files below a folder, by their unpacked names; a trial that has its own marker stands for its files."""
    if not (folder / "run.json").exists():
        return _records(folder)
    names = ["run.json", *(f"workloads/{n}" for n in _records(folder / "workloads"))]
    for place in sorted(folder.glob("sitting-*")):
        for part in (place, *sorted(p for p in place.iterdir() if p.is_dir())):
            names += [f"{part.relative_to(folder)}/{n}" for n in _records(part)]
        names += [str(p.relative_to(folder)) for p in sorted(place.glob(f"*/*/{COMPLETE}"))]
    return names


def _records(folder: Path) -> list[str]:
    names = {p.name.removesuffix(PACKED) for p in folder.iterdir() if p.is_file()} if folder.is_dir() else set()
    return sorted(n for n in names if Path(n).suffix in RECORDS and not n.startswith("."))


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Writes one JSON record whole or not at all: a reader never sees half of it."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def write_whole(path: Path, data: bytes) -> None:
    """Replaces a file atomically; parents are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def _name(path: Path) -> str:
    return "/".join(path.parts[-3:])
