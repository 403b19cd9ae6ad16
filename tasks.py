"""The kit's verbs. Each is a few lines: the work is done in `kit/`, and heavy imports stay inside the verbs."""

import functools
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Context, Exit, task

from kit.errors import KitError, UnusableInput

ROOT = Path(__file__).resolve().parent


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ends a verb as users expect: one line and an exit code, no traceback for what a user can cause."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        def stop(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, stop)
        try:
            return function(*args, **kwargs)
        except KitError as error:
            raise Exit(f"{function.__name__}: {error}", error.exit_code) from None
        except KeyboardInterrupt:
            raise Exit(
                f"{function.__name__}: stopped; what was measured is kept, the same command goes on", 130
            ) from None

    return guarded


def _sets(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UnusableInput(f"--set {pair}: write it as KEY=VALUE, for example --set sweep.seeds=[1,2,3]")
    return dict(pair.split("=", 1) for pair in pairs)


def _load(name: str, sets: list[str], prompts: str = "") -> Any:
    from kit import scenario

    if not name:
        raise UnusableInput("which scenario? --scenario NAME; `invoke list` shows them")
    changes = _sets(sets)
    if prompts:
        changes["datasets.own.path"] = f'"{prompts}"'
    return scenario.load(scenario.find(name, ROOT / "scenarios"), changes)


SCENARIO = "name of a scenario: the stem of a file in scenarios/"
SETS = "change one key of the scenario, KEY=VALUE in TOML, e.g. --set sweep.concurrency=[1,8]; repeatable"


@task(name="list")
@verb
def list_(c: Context) -> None:
    """Show the scenarios as a table: what each asks, its card, arms and size."""
    from kit import overview

    print(overview.scenarios_table(ROOT / "scenarios"))


@task(iterable=["set_"], help={"scenario": SCENARIO, "set": SETS})
@verb
def plan(c: Context, scenario: str = "", set_: list[str] = []) -> None:  # noqa: B006 - Invoke hands in its own list
    """Show the ordered trials of a scenario and the estimated time, and start nothing."""
    from kit import overview

    print(overview.plan_table(_load(scenario, set_)))


@task(
    iterable=["set_"],
    help={
        "scenario": SCENARIO,
        "set": SETS,
        "engine": "docker or process, instead of what the scenario says",
        "prompts": "your own prompts (JSONL), for scenarios with a data set called `own`",
        "no-lock": "leave the GPU clock alone, whatever the scenario says",
        "allow-unpinned": "accept an image without a digest; every report will say so",
    },
)
@verb
def run(
    c: Context,
    scenario: str = "",
    set_: list[str] = [],  # noqa: B006 - Invoke hands in its own list
    engine: str = "",
    prompts: str = "",
    no_lock: bool = False,
    allow_unpinned: bool = False,
) -> None:
    """Measure a scenario and write its report; the same command again goes on where it stopped."""
    from kit import report, setup
    from kit import run as running
    from kit.progress import Terminal

    chosen = _load(scenario, set_, prompts)
    choices = setup.Choices(engine=engine, no_lock=no_lock, allow_unpinned=allow_unpinned)
    with Terminal() as terminal:
        folder = running.run(setup.put_together(chosen, setup.folders(ROOT), choices, terminal.say), terminal)
    print(report.write(folder, ROOT / "templates", ROOT / "reports"))


@task(name="report", help={"run": "a run's folder or a published one; default: the newest run below results/"})
@verb
def report_(c: Context, run: str = "") -> None:
    """Write the report of a run again from its records, and print its path. Needs no server, Docker or GPU."""
    from kit import report

    print(report.write(report.find(run, ROOT / "results"), ROOT / "templates", ROOT / "reports"))


@task
@verb
def check(c: Context) -> None:
    """Check format, lint and types of the kit."""
    python = sys.executable
    c.run(f"{python} -m ruff format --check .")
    c.run(f"{python} -m ruff check .")
    c.run(f"{python} -m mypy")


@task(help={"fast": "leave out the tests that need a real server or a Docker daemon"})
@verb
def test(c: Context, fast: bool = False) -> None:
    """Run all tests; those that need a missing part are skipped with the reason."""
    c.run(f"{sys.executable} -m pytest" + (" -m 'not server and not docker'" if fast else ""))


@task
@verb
def lock(c: Context) -> None:
    """Make requirements.lock anew from requirements.in (needs uv)."""
    command = "uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header"
    c.run(f"{command} requirements.in -o requirements.lock")
