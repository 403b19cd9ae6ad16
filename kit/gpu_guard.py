"""Who holds the clock lock: a small process of its own, so that the reset does not depend on how the run ends.

The guard locks, says so, and waits until its parent goes (closed pipe, another parent) or a signal asks it to end; then
it resets. A marker per card, written before the lock, names card, boot and guard: if the guard itself is killed, the
next `run`, `doctor` or `unlock` finds the marker and resets. Knows nothing of trials, and of NVML only `kit.gpu`.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kit import gpu
from kit.errors import RunFailed, UnusableInput
from kit.measurements import GpuFacts, LockRecord, write_whole

if TYPE_CHECKING:
    from kit import scenario

ENDINGS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
POLL_S = 0.25
END_S = 10.0
EARLIER_LOCK = "an earlier lock by someone else cannot be read; the reset at the end removes it"


class LockJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the guard is asked for, as the first and only line on its stdin. `state_dir` is absolute."""

    asked: str
    asked_mhz: int
    indexes: list[int]
    state_dir: str


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """A lock that may be set: which card, since which boot, and by which guard (its id and start in clock ticks)."""

    uuid: str
    index: int
    boot_id: str
    guard_pid: int
    guard_start_ticks: int
    mhz: int


# ---- for the run ----------------------------------------------------------------------------------------------------


@contextmanager
def hold_lock(
    table: "scenario.Gpu", indexes: list[int], state_dir: Path, no_lock: bool = False
) -> Iterator[LockRecord]:
    """Locks the SM clock of the cards while the context is open, and says what came of it.

    `required` raises UnusableInput when it cannot be had; `preferred` goes on with state "refused" or "unsupported".
    A card that another living run of this kit holds is UnusableInput either way. Raises RunFailed when the clock
    cannot be reset.
    """
    if no_lock or table.lock == "off" or table.lock_mhz is None:
        detail = "--no-lock" if no_lock and table.lock != "off" else ""
        yield LockRecord(asked=table.lock, asked_mhz=table.lock_mhz, detail=detail)
        return
    release_stale(state_dir)
    _refuse_if_held(indexes, state_dir)
    job = LockJob(asked=table.lock, asked_mhz=table.lock_mhz, indexes=indexes, state_dir=str(state_dir.resolve()))
    guard = _start_guard()
    try:
        record = _ask_guard(guard, job)
        if record.state != "locked" and table.lock == "required":
            raise UnusableInput(_no_lock_line(record, indexes))
        yield record
    finally:
        _end_guard(guard)
        release_stale(state_dir)


def release_stale(state_dir: Path) -> list[str]:
    """Resets what dead guards left locked, drops markers of another boot; says what was done, one line each.

    The lock of a living guard is left alone. A card that is not visible here keeps its marker. Raises RunFailed when
    the driver refuses a reset, since every figure of that card would be that of a locked clock.
    """
    stale = [(path, marker) for path, marker in _markers(state_dir) if not _is_held(marker)]
    return [_release(path, marker) for path, marker in stale]


def _release(path: Path, marker: Marker) -> str:
    card = f"card {marker.index} ({marker.uuid})"
    if marker.boot_id != gpu.boot_id():
        path.unlink(missing_ok=True)
        return f"{card}: dropped the marker of an earlier boot; a lock does not outlive a boot"
    try:
        with gpu.driver() as nvml:
            if not gpu.has_card(nvml, marker.uuid):
                return f"{card}: left locked at {marker.mhz} MHz by a run that was killed, and not visible here"
            gpu.reset_clock(nvml, marker.uuid)
    except gpu.NoDriver as error:
        return f"{card}: left locked at {marker.mhz} MHz by a run that was killed, and not visible here: {error}"
    except gpu.ClockRefused as error:
        raise RunFailed(
            f"{card}: still locked at {marker.mhz} MHz by a run that was killed, and the driver does not reset it "
            f"({error}); type `sudo -E invoke unlock`, or `sudo nvidia-smi -i {marker.index} -rgc`"
        ) from None
    path.unlink(missing_ok=True)
    return f"{card}: reset the clock that a killed run left locked at {marker.mhz} MHz"


def _refuse_if_held(indexes: list[int], state_dir: Path) -> None:
    for _, marker in _markers(state_dir):
        if marker.index in indexes:
            raise UnusableInput(
                f"gpu.lock: card {marker.index} is held at {marker.mhz} MHz by another run of this kit "
                f"(guard process {marker.guard_pid}); wait for it, or end it"
            )


def _no_lock_line(record: LockRecord, indexes: list[int]) -> str:
    """What to type when a required lock cannot be had."""
    cards = ",".join(map(str, indexes)) or "0"
    if record.state == "unsupported":
        return f'gpu.lock = "required": {record.detail}; go on without with `--set gpu.lock=preferred` or `--no-lock`'
    mhz = record.asked_mhz
    return (
        f'gpu.lock = "required": {record.detail}; run as root (`sudo -E invoke run ...`), or have the host\'s '
        f"administrator type `nvidia-smi -i {cards} -pm 1 && nvidia-smi -i {cards} -lgc {mhz},{mhz}` and go on with "
        "`--set gpu.lock=preferred`; rented machines and containers often forbid it: `--no-lock`"
    )


def _start_guard() -> "subprocess.Popen[bytes]":
    """In a session of its own, so that Ctrl-C at the terminal reaches the run first; -m needs the kit's own folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "kit.gpu_guard"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
        start_new_session=True,
    )


def _ask_guard(guard: "subprocess.Popen[bytes]", job: LockJob) -> LockRecord:
    assert guard.stdin is not None and guard.stdout is not None
    guard.stdin.write(msgspec.json.encode(job) + b"\n")
    guard.stdin.flush()
    answer = guard.stdout.readline()
    if not answer:
        raise RunFailed(f"the guard of the clock lock ended with code {guard.wait()} before it answered")
    return msgspec.json.decode(answer, type=LockRecord)


def _end_guard(guard: "subprocess.Popen[bytes]") -> None:
    """Closing its pipe is the signal; a guard that hangs in the driver is killed, and its marker tells the rest."""
    try:
        guard.communicate(timeout=END_S)
    except subprocess.TimeoutExpired:
        guard.kill()
        with suppress(subprocess.TimeoutExpired):
            guard.wait(END_S)


# ---- markers --------------------------------------------------------------------------------------------------------


def _markers(state_dir: Path) -> list[tuple[Path, Marker]]:
    """All markers of a folder; raises UnusableInput for one that cannot be read."""
    found = []
    for path in sorted(state_dir.glob("lock-*.json")):
        try:
            found.append((path, msgspec.json.decode(path.read_bytes(), type=Marker)))
        except FileNotFoundError:
            continue
        except msgspec.MsgspecError as error:
            raise UnusableInput(
                f"{path.name} in the state folder is damaged ({error}); type `sudo nvidia-smi -rgc`, then delete it"
            ) from None
    return found


def _is_held(marker: Marker) -> bool:
    """Whether the guard that wrote it lives: same boot, same process id, same start."""
    started = _start_ticks(marker.guard_pid)
    return marker.boot_id == gpu.boot_id() and started is not None and started == marker.guard_start_ticks


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (proc(5), field 22); None when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


# ---- the guard ------------------------------------------------------------------------------------------------------


def main() -> int:
    """Reads its job from stdin, locks, answers one LockRecord on stdout, waits, resets. 1: a clock stayed locked."""
    # Blocked signals stay pending and are asked for while waiting, so that none cuts a lock or a reset in two.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    parent = os.getppid()
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    job = msgspec.json.decode(line, type=LockJob)
    try:
        with gpu.driver() as nvml:
            return _guard(nvml, job, parent)
    except gpu.NoDriver as error:
        _answer(job, "unsupported", str(error))
        return 0


def _guard(nvml: gpu.Nvml, job: LockJob, parent: int) -> int:
    cards = [card for card in gpu.facts()[0] if card.index in job.indexes]
    mhz = gpu.nearest_clock_mhz(job.asked_mhz, cards)
    taken: dict[str, Path] = {}
    try:
        for card in cards:
            _take(nvml, card, mhz, Path(job.state_dir), taken)
        _answer(job, "locked" if taken else "unsupported", EARLIER_LOCK if taken else "no card to lock", mhz)
        _wait_for_end(parent)
    except gpu.ClockRefused as error:
        _answer(job, error.state, str(error))
    finally:
        still_locked = _reset(nvml, taken)
    return 1 if still_locked else 0


def _take(nvml: gpu.Nvml, card: GpuFacts, mhz: int, state_dir: Path, taken: dict[str, Path]) -> None:
    """Marks, then locks one card and adds it to `taken`. Raises ClockRefused that names the card."""
    name = f"card {card.index} ({card.name})"
    if card.uuid is None:
        raise gpu.ClockRefused("unsupported", f"{name}: has no UUID to lock it by")
    marker = _mark(card.uuid, card.index, mhz, state_dir)
    if marker is None:
        raise gpu.ClockRefused("refused", f"{name}: another run of this kit holds its clock")
    try:
        gpu.lock_clock(nvml, card.uuid, mhz)
    except gpu.ClockRefused as error:
        marker.unlink()
        raise gpu.ClockRefused(error.state, f"{name}: the driver does not lock the clock: {error}") from None
    taken[card.uuid] = marker


def _mark(uuid: str, index: int, mhz: int, state_dir: Path) -> Path | None:
    """Writes the marker whole, and only if there is none: None when another guard was first."""
    ticks = _start_ticks(os.getpid())
    assert ticks is not None
    marker = Marker(
        uuid=uuid, index=index, boot_id=gpu.boot_id(), guard_pid=os.getpid(), guard_start_ticks=ticks, mhz=mhz
    )
    path = state_dir / f"lock-{uuid}.json"
    whole = state_dir / f"taking-{uuid}.{os.getpid()}"
    write_whole(whole, msgspec.json.encode(marker))
    try:
        path.hardlink_to(whole)
    except FileExistsError:
        return None
    finally:
        whole.unlink()
    return path


def _answer(job: LockJob, state: str, detail: str, mhz: int | None = None) -> None:
    """One line to the parent, who may be gone already: then there is nobody to tell."""
    set_mhz = mhz if state == "locked" else None
    record = LockRecord(asked=job.asked, asked_mhz=job.asked_mhz, set_mhz=set_mhz, state=state, detail=detail)
    with suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), msgspec.json.encode(record) + b"\n")


def _wait_for_end(parent: int) -> None:
    """Until the pipe closes, a signal asks for the end, or the parent changes (a fork of it may keep the pipe open)."""
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], POLL_S)[0] or signal.sigtimedwait(ENDINGS, 0) is not None:
            return


def _reset(nvml: gpu.Nvml, taken: dict[str, Path]) -> list[str]:
    """Resets every card that was taken; returns those that the driver did not reset, whose markers stay."""
    still_locked = []
    for uuid, marker in taken.items():
        try:
            gpu.reset_clock(nvml, uuid)
        except gpu.ClockRefused:
            still_locked.append(uuid)
        else:
            marker.unlink(missing_ok=True)
    return still_locked


if __name__ == "__main__":
    exit_code = main()
    os._exit(exit_code)  # the answer was written past Python's buffers, and the run waits for this end
