"""NVML, and the only home of it: facts of the cards, the choice among them, clock lock and reset, the sampler.

Knows nothing of servers, and nothing of who holds a lock for how long: that is `kit.gpu_guard`. Cards are addressed by
UUID wherever something is set, since indexes move when a card falls off the bus.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

import msgspec

from kit.errors import UnusableInput
from kit.measurements import GpuFacts, GpuSample

if TYPE_CHECKING:  # neither is needed by the guard, a process that starts with every lock
    from kit import scenario
    from kit.doctor import Check

SAMPLE_PERIOD_S = 0.1
PROCESS_PERIOD_S = 1.0
RETRY_S = 1.0
STOP_S = 10.0
NO_CARD_WAY_OUT = "fine for the rehearsal on the CPU; else install the driver, and in a container give it the card"
# What a working card may answer to a question it has no answer for. Anything else means that the card or its driver
# is in trouble (nvmlReturn_t in nvml.h; 999 is the "Unknown Error" and 15 the lost card of the field's reports).
NO_ANSWER = frozenset({2, 3, 4, 6, 13, 21, 25, 26, 27})
NOT_SUPPORTED = frozenset({3, 13})

T = TypeVar("T")
Nvml: TypeAlias = Any
Handle: TypeAlias = Any


class NoDriver(Exception):
    """There is no NVIDIA library or driver to talk to; the text says which."""


class ClockRefused(Exception):
    """The driver did not set or reset a clock. `state` is "unsupported" or "refused", the text is the driver's."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state


@contextmanager
def driver() -> Iterator[Nvml]:
    """The NVML binding with the library initialised; raises NoDriver when there is none."""
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NoDriver(_why_no_driver(error)) from None
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _why_no_driver(error: Any) -> str:
    known = {12: "the NVIDIA library is not on this machine", 9: "the NVIDIA driver is not loaded"}
    return known.get(error.value, f"the NVIDIA library does not start: {error}")


# ---- facts ----------------------------------------------------------------------------------------------------------


def facts() -> tuple[list[GpuFacts], str]:
    """Every card of this machine and a note, "" when all went well. No library or driver is no error: ([], why)."""
    try:
        with driver() as nvml:
            cards = [_card_facts(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    except NoDriver as error:
        return [], f"no GPU facts: {error}"
    if not cards:
        return [], "no GPU facts: the NVIDIA library finds no card"
    silent = [f"card {card.index}" for card in cards if card.name is None]
    return cards, f"{', '.join(silent)}: no answer from the driver" if silent else ""


def _card_facts(nvml: Nvml, index: int) -> GpuFacts:
    """One card; fields that it does not answer stay None, and of a card that is lost only the index is known."""
    try:
        return _read_facts(nvml, index, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError:
        return GpuFacts(index=index)


def _read_facts(nvml: Nvml, index: int, card: Handle) -> GpuFacts:
    def ask(call: Callable[..., T], *args: Any) -> T | None:
        return _ask(nvml, call, *args)

    memory = ask(nvml.nvmlDeviceGetMemoryInfo, card)
    limit_mw = ask(nvml.nvmlDeviceGetEnforcedPowerLimit, card)
    capability = ask(nvml.nvmlDeviceGetCudaComputeCapability, card)
    return GpuFacts(
        index=index,
        name=ask(nvml.nvmlDeviceGetName, card),
        uuid=ask(nvml.nvmlDeviceGetUUID, card),
        driver=ask(nvml.nvmlSystemGetDriverVersion),
        cuda=_cuda_version(ask(nvml.nvmlSystemGetCudaDriverVersion)),
        memory_total_bytes=memory.total if memory else None,
        memory_used_bytes=memory.used if memory else None,
        sm_clocks_mhz=_sm_clocks_mhz(nvml, card),
        memory_clock_max_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, card, nvml.NVML_CLOCK_MEM),
        sm_clock_max_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, card, nvml.NVML_CLOCK_SM),
        power_limit_w=limit_mw / 1000 if limit_mw is not None else None,
        ecc=_flag(ask(nvml.nvmlDeviceGetEccMode, card)),
        mig=_flag(ask(nvml.nvmlDeviceGetMigMode, card)),
        persistence=_flag(ask(nvml.nvmlDeviceGetPersistenceMode, card)),
        pcie_generation=ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration, card),
        pcie_width=ask(nvml.nvmlDeviceGetCurrPcieLinkWidth, card),
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        foreign_processes=_processes(nvml, card) or [],
    )


def _ask(nvml: Nvml, call: Callable[..., T], *args: Any) -> T | None:
    """The answer, or None when the card has none; raises NVMLError when card or driver are in trouble."""
    try:
        return call(*args)
    except nvml.NVMLError as error:
        if error.value in NO_ANSWER:
            return None
        raise


def _flag(state: int | list[int] | None) -> bool | None:
    """Modes come as one number or as [now, after the next restart]."""
    if isinstance(state, list):
        state = state[0]
    return None if state is None else bool(state)


def _cuda_version(number: int | None) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


def _sm_clocks_mhz(nvml: Nvml, card: Handle) -> list[int]:
    """The SM clocks that can be locked, ascending; they are listed per memory clock, of which a server has the top."""
    memory = _ask(nvml, nvml.nvmlDeviceGetSupportedMemoryClocks, card)
    if not memory:
        return []
    return sorted(_ask(nvml, nvml.nvmlDeviceGetSupportedGraphicsClocks, card, max(memory)) or [])


def _processes(nvml: Nvml, card: Handle) -> list[int] | None:
    """Process ids with a compute context, as the driver numbers them (of the host, when asked inside a container)."""
    found = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses_v3, card)
    return None if found is None else sorted(process.pid for process in found)


def boot_id() -> str:
    """The kernel's id of this boot, or "unknown" where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


# ---- the choice -----------------------------------------------------------------------------------------------------


def select(gpu: "scenario.Gpu", cards: list[GpuFacts]) -> list[int]:
    """Indexes of the cards a scenario runs on: its `ids`, else the first `count` cards of the expected name.

    No card and none expected gives []. Raises UnusableInput that names what was found, what was expected and the way
    out. Indexes are NVML's, in PCI order: a server sees them so with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    if not cards and not gpu.expected and not gpu.ids:
        return []
    chosen = _named_cards(gpu, cards) if gpu.ids else _first_cards(gpu, cards)
    for card in chosen:
        if card.name is None:
            raise UnusableInput(f"gpu: card {card.index} does not answer the driver; look at `nvidia-smi` and `dmesg`")
        if not _is_expected(gpu, card):
            raise UnusableInput(_other_card(gpu, [card]))
    return [card.index for card in chosen]


def _named_cards(gpu: "scenario.Gpu", cards: list[GpuFacts]) -> list[GpuFacts]:
    by_index = {card.index: card for card in cards}
    for index in gpu.ids:
        if index not in by_index:
            raise UnusableInput(f"gpu.ids: no card {index} here; {_found(cards)}; name others with `--set gpu.ids=[0]`")
    return [by_index[index] for index in gpu.ids]


def _first_cards(gpu: "scenario.Gpu", cards: list[GpuFacts]) -> list[GpuFacts]:
    fit = [card for card in cards if _is_expected(gpu, card)]
    if not fit:
        raise UnusableInput(_other_card(gpu, cards))
    if len(fit) < gpu.count:
        wanted = f"{gpu.count} x {gpu.expected or 'any card'}"
        raise UnusableInput(f"gpu.count: expected {wanted}, {_found(cards)}; take fewer with `--set gpu.count=1`")
    return fit[: gpu.count]


def _is_expected(gpu: "scenario.Gpu", card: GpuFacts) -> bool:
    """Whole words of the name count: "L4" is no "NVIDIA L40S"."""
    words = rf"(?<![A-Za-z0-9]){re.escape(gpu.expected)}(?![A-Za-z0-9])"
    return not gpu.expected or bool(re.search(words, card.name or "", re.IGNORECASE))


def _other_card(gpu: "scenario.Gpu", cards: list[GpuFacts]) -> str:
    name = next((card.name for card in cards if card.name), None)
    instead = f'`--set gpu.expected="{name}"`' if name else "`--set gpu.expected=`"
    return f"gpu.expected: expected {gpu.expected}, {_found(cards)}; to run here all the same: {instead}"


def _found(cards: list[GpuFacts]) -> str:
    return "found " + (", ".join(_describe(card) for card in cards) or "no NVIDIA card")


def _describe(card: GpuFacts) -> str:
    busy = f" (in use by processes {', '.join(map(str, card.foreign_processes))})" if card.foreign_processes else ""
    return f"card {card.index} {card.name or 'without an answer'}{busy}"


# ---- the clock ------------------------------------------------------------------------------------------------------


def nearest_clock_mhz(asked_mhz: int, cards: list[GpuFacts]) -> int:
    """The clock nearest to the one asked for that all cards support; the one asked for where no card lists any."""
    lists = [set(card.sm_clocks_mhz) for card in cards if card.sm_clocks_mhz]
    common = set.intersection(*lists) if lists else set()
    return min(common, key=lambda mhz: (abs(mhz - asked_mhz), mhz), default=asked_mhz)


def lock_clock(nvml: Nvml, uuid: str, mhz: int) -> None:
    """Locks one card's SM clock. Raises ClockRefused. Whoever calls this must reset it: see `kit.gpu_guard`."""
    with _clock_call(nvml):
        nvml.nvmlDeviceSetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(uuid), mhz, mhz)


def reset_clock(nvml: Nvml, uuid: str) -> None:
    """Gives one card its free clock back, whoever locked it. Raises ClockRefused."""
    with _clock_call(nvml):
        nvml.nvmlDeviceResetGpuLockedClocks(nvml.nvmlDeviceGetHandleByUUID(uuid))


def has_card(nvml: Nvml, uuid: str) -> bool:
    """Whether this machine has the card now."""
    try:
        nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return False
    return True


@contextmanager
def _clock_call(nvml: Nvml) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise ClockRefused("unsupported" if error.value in NOT_SUPPORTED else "refused", str(error)) from None


# ---- the sampler ----------------------------------------------------------------------------------------------------


class Sampler:
    """Reads the cards about ten times a second in a thread of its own while the context is open.

    `samples` holds what was read, and each reading is written to `path` as it arrives (no card: no file). A card or
    driver in trouble gives a sample with `error`, and a new start of the library is tried every second. `avoid_cores`
    are CPU cores that the thread keeps off, since the client is timed on them.
    """

    def __init__(self, indexes: Sequence[int], path: Path, avoid_cores: Sequence[int] = ()) -> None:
        self.samples: list[GpuSample] = []
        self._indexes = list(indexes)
        self._path = path
        self._avoid = set(avoid_cores)
        self._uuids: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)

    def __enter__(self) -> Self:
        if self._indexes:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A driver that hangs must not hang the run: the thread is a daemon, and the trial is void by its gap.
        self._stop.set()
        if self._indexes:
            self._thread.join(STOP_S)

    @property
    def errors(self) -> list[str]:
        """What went wrong with a card while sampling, each text once; not empty makes a trial void."""
        return list(dict.fromkeys(f"card {s.index}: {s.error}" for s in self.samples if s.error))

    def _run(self) -> None:
        self._keep_off_cores()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("wb") as file:
            while not self._stop.is_set():
                for sample in self._sample_until_trouble():
                    self.samples.append(sample)
                    file.write(msgspec.json.encode(sample) + b"\n")
                    file.flush()
                self._stop.wait(RETRY_S)

    def _keep_off_cores(self) -> None:
        """Pins this thread only; Linux takes thread 0 for the calling one."""
        cores = os.sched_getaffinity(0) - self._avoid
        if self._avoid and cores:
            os.sched_setaffinity(0, cores)

    def _sample_until_trouble(self) -> Iterator[GpuSample]:
        """Samples at the period; ends after samples that carry an error, or when the sampler is stopped."""
        try:
            with driver() as nvml:
                yield from self._sample_cards(nvml)
        except NoDriver as error:
            yield from (GpuSample(monotonic_s=time.monotonic(), index=i, error=str(error)) for i in self._indexes)

    def _sample_cards(self, nvml: Nvml) -> Iterator[GpuSample]:
        """The last samples come after the stop, so that those of a trial reach past its end."""
        reader = _Reader(nvml)
        due = time.monotonic()
        over = False
        while not over:
            over = self._stop.wait(max(0.0, due - time.monotonic()))
            due = max(due + SAMPLE_PERIOD_S, time.monotonic())
            for index in self._indexes:
                sample = reader.read(index, self._uuids)
                over = over or sample.error is not None
                yield sample


class _Reader:
    """Reads samples through one start of the library; remembers handles and when processes are due."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._handles: dict[int, Handle] = {}
        self._processes_due: dict[int, float] = {}

    def read(self, index: int, uuids: dict[int, str]) -> GpuSample:
        """One sample of one card; `uuids` keeps the cards' names across starts of the library."""
        at_s = time.monotonic()
        try:
            return self._read(at_s, index, self._handle(index, uuids))
        except self._nvml.NVMLError as error:
            return GpuSample(monotonic_s=at_s, index=index, error=str(error))

    def _handle(self, index: int, uuids: dict[int, str]) -> Handle:
        if index not in self._handles:
            nvml = self._nvml
            if index in uuids:
                self._handles[index] = nvml.nvmlDeviceGetHandleByUUID(uuids[index])
            else:
                self._handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
                uuid = _ask(nvml, nvml.nvmlDeviceGetUUID, self._handles[index])
                if uuid is not None:
                    uuids[index] = uuid
        return self._handles[index]

    def _read(self, at_s: float, index: int, card: Handle) -> GpuSample:
        nvml = self._nvml
        power_mw = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, card)
        energy_mj = _ask(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, card)
        rates = _ask(nvml, nvml.nvmlDeviceGetUtilizationRates, card)
        memory = _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, card)
        return GpuSample(
            monotonic_s=at_s,
            index=index,
            sm_clock_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_MEM),
            reasons=self._read_reasons(card),
            power_w=None if power_mw is None else power_mw / 1000,
            energy_j=None if energy_mj is None else energy_mj / 1000,
            temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
            utilisation=None if rates is None else rates.gpu / 100,
            memory_used_bytes=None if memory is None else memory.used,
            processes=self._read_processes(at_s, index, card),
        )

    def _read_reasons(self, card: Handle) -> int | None:
        """Older drivers know the same bits by the name of throttle reasons only."""
        nvml = self._nvml
        reasons: int | None = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, card)
        if reasons is None:
            reasons = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, card)
        return reasons

    def _read_processes(self, at_s: float, index: int, card: Handle) -> list[int] | None:
        """Once a second only: who is on a card changes slowly, and every question costs the driver a little."""
        if at_s < self._processes_due.get(index, 0.0):
            return None
        self._processes_due[index] = at_s + PROCESS_PERIOD_S
        return _processes(self._nvml, card)


# ---- doctor ---------------------------------------------------------------------------------------------------------


def checks(gpu: "scenario.Gpu | None" = None) -> "list[Check]":
    """The GPU rows of `doctor`; with a scenario's `[gpu]` also whether its cards are here. Reads only."""
    from kit.doctor import Check

    cards, note = facts()
    if not cards:
        return [*_card_rows(cards), Check("GPU", "warn", note, NO_CARD_WAY_OUT), *_choice_rows(gpu, cards)]
    notes = [Check("GPU", "warn", note, "look at `nvidia-smi` and `dmesg`")] if note else []
    return [*_card_rows(cards), *notes, *_choice_rows(gpu, cards)]


def _card_rows(cards: list[GpuFacts]) -> "list[Check]":
    from kit.doctor import Check

    rows = []
    for card in cards:
        memory = "memory n/a" if card.memory_total_bytes is None else f"{card.memory_total_bytes / 2**30:.1f} GiB"
        detail = f"{card.name or 'no name'}, {memory}, driver {card.driver or 'n/a'}, CUDA {card.cuda or 'n/a'}"
        rows.append(Check(f"GPU {card.index}", "ok" if card.name else "fail", detail))
        if card.foreign_processes:
            pids = ", ".join(map(str, card.foreign_processes))
            rows.append(Check(f"GPU {card.index} in use", "warn", f"compute processes {pids}", "end them before a run"))
        if card.mig:
            way_out = "`sudo nvidia-smi -mig 0`, or read power and clocks as those of the whole card"
            rows.append(Check(f"GPU {card.index} MIG", "warn", "MIG mode is on", way_out))
    return rows


def _choice_rows(gpu: "scenario.Gpu | None", cards: list[GpuFacts]) -> "list[Check]":
    """Whether the scenario's cards are here; whether a lock is allowed shows only when it is tried, in a run."""
    from kit.doctor import Check

    if gpu is None:
        return []
    try:
        chosen = select(gpu, cards)
    except UnusableInput as error:
        return [Check("GPU of the scenario", "fail", str(error))]
    rows = [Check("GPU of the scenario", "ok", f"cards {chosen}" if chosen else "none expected")]
    if gpu.lock != "off" and os.geteuid() != 0:
        state: Literal["fail", "warn"] = "fail" if gpu.lock == "required" else "warn"
        rows.append(Check("clock lock", state, "locking a clock needs root", "run with `sudo -E`, or `--no-lock`"))
    return rows
