"""The client's command line: `drive` (a job on stdin, lines on stdout), `call` (one request) and `selftest`.

  python -m kit.client drive < job.json
  python -m kit.client call METHOD PATH --host H --port P [--timeout S] < body
  python -m kit.client selftest [--cores N,N]

Exit 0 also when requests failed (failures are records), 2 for a job that cannot be used.
"""

import os
import resource
import signal
import sys
from typing import TYPE_CHECKING

import msgspec

from kit.errors import KitError, UnusableInput

if TYPE_CHECKING:
    import argparse

    from kit.client.job import DriveJob


def main() -> int:
    """Runs one command; an error that a user can mend is one line on stderr."""
    try:
        if sys.argv[1:] == ["drive"]:  # one starts for every trial, and has no options to parse
            _drive(sys.stdin.buffer.read())
        else:
            _run(_parser().parse_args())
    except KitError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _run(arguments: "argparse.Namespace") -> None:
    if arguments.command == "call":
        _call(arguments)
    else:
        _selftest(arguments.cores)


def _parser() -> "argparse.ArgumentParser":
    import argparse

    parser = argparse.ArgumentParser(prog="python -m kit.client", description="The kit's load client.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("drive", help="drive the DriveJob on stdin; ClientLines on stdout")
    call = commands.add_parser("call", help="one HTTP request, its body on stdin; one JSON line on stdout")
    call.add_argument("method")
    call.add_argument("path")
    call.add_argument("--host", default="127.0.0.1")
    call.add_argument("--port", type=int, required=True)
    call.add_argument("--timeout", type=float, default=30.0, metavar="SECONDS")
    selftest = commands.add_parser("selftest", help="time an echo of known schedule; one JSON line on stdout")
    selftest.add_argument("--cores", type=_cores, default=[], metavar="N,N", help="cores of the client")
    return parser


def _cores(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _drive(text: bytes) -> None:
    from kit.client.job import DriveJob

    try:
        job = msgspec.json.decode(text, type=DriveJob)
    except msgspec.MsgspecError as error:
        raise UnusableInput(f"drive job on stdin: {error}") from None
    if job.requests < 1 or (not job.concurrency and job.rate_per_s is None):
        raise UnusableInput("drive job on stdin: requests must be at least 1, and concurrency 0 needs rate_per_s")
    pin(job.cores)
    _allow_connections()
    _drive_job(job)


def _drive_job(job: "DriveJob") -> None:
    import asyncio

    import uvloop

    from kit.client.drive import drive
    from kit.client.output import LineWriter

    signals: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: signals.append(f"ended by {signal.Signals(got).name}"))
    writer = LineWriter(sys.stdout.fileno())

    def stopped() -> str | None:
        return "nobody reads the client's output" if writer.reader_gone() else next(iter(signals), None)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(drive(job, writer, stopped))
    writer.close()


def pin(cores: list[int]) -> None:
    """Keeps this process on `cores`; raises UnusableInput when the machine has no such core."""
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        raise UnusableInput(f"cores {cores}: {error.strerror}; this machine has {os.cpu_count()}") from None


def _allow_connections() -> None:
    """Each user holds a socket; the usual soft limit of 1,024 files is below what the hard one allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _call(arguments: "argparse.Namespace") -> None:
    from kit.client.call import call

    body = sys.stdin.buffer.read()
    result = call(arguments.method, arguments.path, body, arguments.host, arguments.port, arguments.timeout)
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")


def _selftest(cores: list[int]) -> None:
    from kit.client.probe import selftest

    sys.stdout.buffer.write(msgspec.json.encode(selftest(cores)) + b"\n")


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    os._exit(exit_code)  # all is written; taking the interpreter apart would cost a fifth of what its start does
