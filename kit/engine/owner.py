"""Who started something, so that a later run can tell a dead owner from a living one. Knows nothing of engines."""

import os
from pathlib import Path
from typing import Literal

import msgspec

from kit.engine import supervisor


class Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A process beyond doubt: ids are used again, but not with the same start time within one boot.

    `started` is in clock ticks since boot; `space` names the PID namespace in which `pid` counts.
    """

    pid: int
    started: int
    boot: str
    space: str


def me() -> Owner:
    """The process that asks."""
    found = supervisor.process(os.getpid())
    if found is None:
        raise ProcessLookupError("/proc does not show this process: the kit needs Linux with /proc")
    return Owner(pid=found.pid, started=found.started, boot=supervisor.boot_id(), space=_space())


def state(owner: Owner) -> Literal["alive", "dead", "unknown"]:
    """Whether the owner still runs; "unknown" when it counts in another PID namespace of this boot."""
    if owner.boot != supervisor.boot_id():
        return "dead"
    if owner.space != _space():
        return "unknown"
    found = supervisor.process(owner.pid)
    return "alive" if found and found.started == owner.started else "dead"


def _space() -> str:
    return str(Path("/proc/self/ns/pid").readlink())
