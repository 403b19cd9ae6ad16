"""The seam between a run and where its server lives. Knows nothing of what SGLang prints.

An engine starts one server and hands out an `Endpoint`, through which all talk to the server goes: control calls and
the client's drive both happen beside the server (in its network, on cores apart from its own), never across a
boundary that would be timed along. Leaving the context ends the server, the client and whatever they started.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from kit.client.job import DriveJob


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A server to start. `argv` follows the Python executable; `models` are folders on this machine it may read.

    In `argv`, the paths of `models` stand as this machine has them; an engine that mounts them elsewhere maps them.
    `log` is where the server's whole output goes, as it is printed. `label` names the run in containers and processes.
    """

    argv: list[str]
    env: dict[str, str]
    models: list[Path]
    workloads: Path
    log: Path
    port: int
    label: str


class Reply(msgspec.Struct, frozen=True):
    """An HTTP answer; `status` 0 means that nothing answered, and `body` then says why."""

    status: int
    body: bytes


class Endpoint(Protocol):
    """A server that was started. It may not generate yet: `kit.sglang.api.wait_until_generates` finds out."""

    def call(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 30.0) -> Reply:
        """One control request, made beside the server. Raises EngineLost when the engine itself is gone."""
        ...

    def drive(self, job: DriveJob) -> Iterator[bytes]:
        """Runs the client on one job and yields its lines (JSON of `measurements.ClientLine`) as they arrive."""
        ...

    def exit_code(self) -> int | None:
        """None while the server lives."""
        ...


class Engine(Protocol):
    """Starts servers; the client runs on `client_cores`, apart from the server's (empty: the machine has one core)."""

    name: str
    client_cores: list[int]

    def check(self, port: int) -> dict[str, str]:
        """Everything that can be known before the first second of GPU time; returns facts, raises UnusableInput."""
        ...

    def serve(self, launch: Launch) -> AbstractContextManager[Endpoint]:
        """Starts a server; leaving the context ends it in every case."""
        ...

    def clean(self) -> list[str]:
        """Removes what a killed earlier run of this kit left behind; returns what it removed, in words."""
        ...
