"""A small process between the runner and its child: ends the child and all that came of it when the runner goes.

Run as a script with the standard library alone, and little of it: one starts before every server and every drive, and
`pathlib` and `typing` would cost more than all it does. Standard input is the lifeline: its first line is the order
(JSON: argv, env, cores, log, stdin, grace_s, marker), and its end, however it comes about, is the sign to stop. The
exit code is the child's, 128 + N for a signal. Knows nothing of SGLang or of the client.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, repeat
from types import FrameType

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
POLL_S = 0.1
PAUSES_S = (0.005, 0.01, 0.02, 0.04, POLL_S / 2)
KILL_WAIT_S = 20.0
CANNOT_START = 127


class Process:
    """A line of /proc: `started` is in clock ticks since boot and tells a process from a later one with its number."""

    __slots__ = ("parent", "pid", "session", "started")

    def __init__(self, pid: int, parent: int, session: int, started: int) -> None:
        self.pid, self.parent, self.session, self.started = pid, parent, session, started


def processes() -> Iterator[Process]:
    """Every process that is not a zombie."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = process(int(name))
            if found is not None:
                yield found


def process(pid: int) -> Process | None:
    """One process, or None when it has ended: a zombie has, unless threads of it still hold its files and ports."""
    try:
        text = _read(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = text.rpartition(b")")[2].split()  # the name before it may hold spaces and brackets, and bytes of any kind
    if fields[0] in b"ZX" and int(fields[17]) <= 1:
        return None
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]))


def descendants(ancestor: int, session: int) -> list[int]:
    """What came of a process: all below it, whatever session they moved to, and all in the child's session."""
    everything = list(processes())
    family = {ancestor}
    while True:
        more = {p.pid for p in everything if p.pid not in family and (p.parent in family or p.session == session)}
        if not more:
            return sorted(family - {ancestor})
        family |= more


def end(leader: int, members: Callable[[], list[int]], grace_s: float) -> bool:
    """SIGTERM to the leader, a bounded wait, SIGKILL to every member until none is left; False when some stay."""
    if leader in members():
        send([leader], signal.SIGTERM)
        _wait(lambda: leader not in members(), grace_s)
    deadline, pauses = time.monotonic() + KILL_WAIT_S, _pauses()
    while time.monotonic() < deadline:
        left = members()
        if not left:
            return True
        send(left, signal.SIGKILL)
        time.sleep(next(pauses))
    return not members()


def send(pids: list[int], number: signal.Signals) -> None:
    """Signals processes, some of which may be gone by now."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def boot_id() -> str:
    """The kernel's name for this boot."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()


def _read(path: str) -> bytes:
    """A file of /proc that is short: every process of the machine is read several times until a server has ended."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def _wait(done: Callable[[], bool], seconds: float) -> None:
    deadline, pauses = time.monotonic() + seconds, _pauses()
    while not done() and time.monotonic() < deadline:
        time.sleep(next(pauses))


def _pauses() -> Iterator[float]:
    """Seconds to wait before looking again: most processes are gone within a few milliseconds."""
    return chain(PAUSES_S, repeat(PAUSES_S[-1]))


def _prepare_child() -> None:
    ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _start(argv: list[str], env: dict[str, str], cores: list[int], log: str, stdin: str) -> "subprocess.Popen[bytes]":
    if cores:
        os.sched_setaffinity(0, cores)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if log else None
    child = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=_prepare_child,
    )
    if child.stdin:
        try:
            child.stdin.write(stdin.encode())
            child.stdin.close()
        except BrokenPipeError:  # it ended at once; its exit code tells
            pass
    return child


def _mark(path: str, runner: int, child: int) -> None:
    """Notes what runs, for a later run to end when even this process was killed."""
    mine, its, owner = process(os.getpid()), process(child), process(runner)
    note = {
        "boot_id": boot_id(),
        "supervisor": mine and [mine.pid, mine.started],
        "child": its and [its.pid, its.started],
        "runner": owner and [owner.pid, owner.started],
    }
    scratch = f"{path}.new"
    with open(scratch, "w") as file:
        file.write(json.dumps(note))
    os.replace(scratch, path)


def _watch(child: "subprocess.Popen[bytes]", stopped: list[int], signals: int) -> int | None:
    """Returns the child's exit code, or None when the lifeline ended first. `signals` gets a byte for each signal."""
    while child.poll() is None:
        readable, _, _ = select.select([0, signals], [], [], POLL_S)
        if stopped or 0 in readable and not os.read(0, 4096):
            return child.poll()
        if signals in readable:
            os.read(signals, 4096)
    return child.returncode


def _awoken_by_children() -> int:
    """A descriptor that can be read as soon as a child has ended: each drive waits for its client's end."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return reads


def main() -> int:
    """Starts the child that the order names and stays until it and all that came of it are gone."""
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals = _awoken_by_children()
    order = json.loads(sys.stdin.buffer.readline() or "null")
    if order is None:
        return 0
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1)
    try:
        child = _start(order["argv"], order["env"], order["cores"], order["log"], order["stdin"])
    except OSError as error:
        sys.stderr.write(f"{order['argv'][0]}: {error.strerror}\n")
        return CANNOT_START
    _mark(order["marker"], order["runner"], child.pid)
    code = _watch(child, stopped, signals)
    ended = end(child.pid, lambda: descendants(os.getpid(), child.pid), order["grace_s"] if code is None else 0.0)
    if ended:
        with suppress(FileNotFoundError):
            os.unlink(order["marker"])
    code = child.wait() if code is None else code
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
