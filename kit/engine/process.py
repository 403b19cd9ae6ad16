"""The process engine: server and client as processes of this machine. Knows nothing of what SGLang prints.

Both run under a supervisor (`supervisor.py`) that outlives the runner: however the runner goes, also by kill -9, the
server, the client and whatever they started are ended. Proxies of the environment are never used for this machine.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from kit import children
from kit.client.job import DriveJob
from kit.engine import Launch, Reply, supervisor
from kit.errors import EngineLost, RunFailed, UnusableInput

HOST = "127.0.0.1"
SERVER_GRACE_S = 15.0  # SGLang drains for about 5 s on SIGTERM
CLIENT_GRACE_S = 2.0
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
ASK_VERSIONS = """
import importlib.metadata as m, json, platform
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
names = ("sglang", "torch", "transformers", "sglang-kernel", "sgl-kernel", "flashinfer-python")
print(json.dumps({"python": platform.python_version(), **{n: v for n in names if (v := version(n))}}))
"""


class ProcessEngine:
    """Starts SGLang from `python` and the client from `client_python`. `env` goes to the server, below the launch's.

    `state_dir` holds a note on each server that runs, for `clean`. `server_cores` and `client_cores` are apart; both
    are empty on a machine with one core.
    """

    name = "process"

    def __init__(self, python: Path, client_python: Path, state_dir: Path, env: dict[str, str] | None = None) -> None:
        self._python = python
        self._client_python = client_python
        self._state = state_dir
        self._env = env or {}
        self.server_cores, self.client_cores = split_cores(sorted(os.sched_getaffinity(0)))

    def check(self, port: int) -> dict[str, str]:
        """Versions in the server's Python; raises UnusableInput when the port is taken or SGLang is not there."""
        if fault := _port_fault(port):
            raise UnusableInput(fault)
        return self._versions()

    @contextmanager
    def serve(self, launch: Launch) -> Iterator["ProcessEndpoint"]:
        """Starts a server; leaving the context ends it and everything it started, in every case.

        Raises RunFailed when the port was taken since `check`: who holds it would be taken for the server.
        """
        if fault := _port_fault(launch.port):
            raise RunFailed(fault)
        self._state.mkdir(parents=True, exist_ok=True)
        launch.log.parent.mkdir(parents=True, exist_ok=True)
        order = _order(
            [str(self._python), *launch.argv],
            {**_environment(), **self._env, **launch.env},
            marker=self._state / f"server-{os.getpid()}-{launch.port}.json",
            cores=self.server_cores,
            log=launch.log,
            grace_s=SERVER_GRACE_S,
        )
        with _supervised(order, SERVER_GRACE_S) as process:
            yield ProcessEndpoint(self, process, launch.port)

    def clean(self) -> list[str]:
        """Ends servers and clients of killed runs whose supervisor was killed too; returns what it ended, in words."""
        removed = []
        for marker in sorted(self._state.glob("*.json")):
            removed += _clean_one(marker)
        return removed

    def client_order(self, job: DriveJob) -> dict[str, object]:
        """The supervisor's order for one drive; used by the endpoint."""
        env = {**children.environment(), "PYTHONUNBUFFERED": "1"}
        return _order(
            [str(self._client_python), "-m", "kit.client", "drive"],
            env,
            marker=self._state / f"client-{os.getpid()}-{job.port}.json",
            stdin=msgspec.json.encode(job).decode(),
            grace_s=CLIENT_GRACE_S,
        )

    def _versions(self) -> dict[str, str]:
        argv = [str(self._python), "-c", ASK_VERSIONS]
        try:
            asked = subprocess.run(
                argv, env={**_environment(), **self._env}, capture_output=True, text=True, timeout=120, check=False
            )
        except OSError as error:
            raise UnusableInput(f"{self._python.name}: {error.strerror}; it should be a Python with SGLang") from None
        if asked.returncode:
            raise UnusableInput(f"{self._python.name}: no working Python: {_last_line(asked.stderr)}")
        facts: dict[str, str] = json.loads(asked.stdout)
        if "sglang" not in facts:
            raise UnusableInput(
                "SGLang is not installed in the Python that is to run the server; install it there, "
                "or set process.environment (cpu is the kit's own rehearsal) or engine = docker"
            )
        return facts


class ProcessEndpoint:
    """A server that was started on this machine."""

    def __init__(self, engine: ProcessEngine, process: "subprocess.Popen[bytes]", port: int) -> None:
        self._engine = engine
        self._process = process
        self._port = port

    def call(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 30.0) -> Reply:
        """One control request on a connection of its own; status 0 when nothing answered in time."""
        connection = http.client.HTTPConnection(HOST, self._port, timeout=timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
            answer = connection.getresponse()
            return Reply(answer.status, answer.read())
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, f"{type(error).__name__}: {error}".encode())
        finally:
            connection.close()

    def drive(self, job: DriveJob) -> Iterator[bytes]:
        """Runs the client in a process of its own and yields its lines; raises EngineLost when it fails."""
        job = msgspec.structs.replace(job, host=job.host or HOST, cores=job.cores or self._engine.client_cores)
        with tempfile.TemporaryFile() as errors:
            with _supervised(self._engine.client_order(job), CLIENT_GRACE_S, errors) as process:
                assert process.stdout is not None
                yield from process.stdout
                code = process.wait()
            if code:
                errors.seek(0)
                said = _last_line(errors.read().decode(errors="replace"))
                raise EngineLost(f"the client ended with code {code}: {said}; run again to go on")

    def exit_code(self) -> int | None:
        """None while the server lives; 128 + N when a signal ended it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code


def split_cores(cores: list[int]) -> tuple[list[int], list[int]]:
    """The server's cores and the client's: the last one is the client's where there are two or more."""
    return (cores[:-1], cores[-1:]) if len(cores) > 1 else ([], [])


def _order(
    argv: list[str],
    env: dict[str, str],
    marker: Path,
    grace_s: float,
    cores: list[int] | None = None,
    log: Path | None = None,
    stdin: str = "",
) -> dict[str, object]:
    return {
        "argv": argv,
        "env": env,
        "cores": cores or [],
        "log": str(log.absolute()) if log else "",
        "stdin": stdin,
        "grace_s": grace_s,
        "marker": str(marker.absolute()),
        "runner": os.getpid(),
    }


@contextmanager
def _supervised(
    order: dict[str, object], grace_s: float, errors: IO[bytes] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Starts a supervisor with an order and keeps its lifeline for as long as the context lasts."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", supervisor.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if errors is not None else subprocess.DEVNULL,
        stderr=errors,
        start_new_session=True,  # Ctrl-C reaches the runner alone, which then ends things in order
    )
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        yield process
    finally:
        _let_go(process, Path(str(order["marker"])), grace_s)


def _let_go(process: "subprocess.Popen[bytes]", marker: Path, grace_s: float) -> None:
    """Ends the lifeline and waits; a supervisor that does not come to an end is ended with what it watched."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already
        process.stdin.close()
    if process.stdout:
        process.stdout.close()
    try:
        process.wait(grace_s + supervisor.KILL_WAIT_S + 5.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _clean_one(marker, own=True)


def _clean_one(marker: Path, own: bool = False) -> list[str]:
    """Ends what a note tells of, unless its runner still lives; returns what it ended, in words."""
    try:
        note = json.loads(marker.read_text())
    except (FileNotFoundError, ValueError):
        marker.unlink(missing_ok=True)
        return []
    if note["boot_id"] != supervisor.boot_id() or not note["child"]:
        marker.unlink(missing_ok=True)
        return []
    if not own and _lives(note["runner"]):
        return []
    leader, started = note["child"]
    if not _session(leader, started):
        marker.unlink(missing_ok=True)
        return []
    if supervisor.end(leader, lambda: _session(leader, started), 2.0):
        marker.unlink(missing_ok=True)
    return [f"{marker.name.partition('-')[0]} process {leader} and what it had started"]


def _session(leader: int, started: int) -> list[int]:
    """What is left of a session; nothing when its number went to another process since."""
    now = supervisor.process(leader)
    if now is not None and now.started != started:
        return []
    return [p.pid for p in supervisor.processes() if p.session == leader and p.started >= started]


def _lives(who: list[int] | None) -> bool:
    found = supervisor.process(who[0]) if who else None
    return bool(found and who and found.started == who[1])


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key.lower() not in PROXIES}


def _port_fault(port: int) -> str:
    """Why no server can listen there, and the way out; empty when one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            return f"port {port} needs rights that you do not have; --set server.port=30000"
        except OSError:
            return f"port {port} is in use by another program; end it, or choose another: --set server.port={port + 1}"
    return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
