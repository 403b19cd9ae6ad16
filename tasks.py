"""The kit's verbs. Each is a few lines: the work is done in `kit/`, and heavy imports stay inside the verbs."""

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from invoke import Context, Exit, task

from kit.errors import KitError, UnusableInput

ROOT = Path(__file__).resolve().parent
SCENARIOS, TEMPLATES, RESULTS, REPORTS = (ROOT / n for n in ("scenarios", "templates", "results", "reports"))

SCENARIO = "name of a scenario: the stem of a file in scenarios/"
SETS = "change one key of the scenario, KEY=VALUE in TOML, e.g. --set sweep.concurrency=[1,8]; repeatable"
RUN = "a run: its folder below results/ or published/, or a published archive"
ENGINE = "docker or process, instead of what the scenario says"
UNPINNED = "accept an image without a digest; every report will say so"


def verb(function: Callable[..., Any]) -> Callable[..., Any]:
    """Ends a verb as users expect: one line and an exit code, no traceback for what a user can cause."""

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        def stop(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        signal.signal(signal.SIGTERM, stop)
        name = function.__name__.rstrip("_")
        try:
            result = function(*args, **kwargs)
            sys.stdout.flush()
            return result
        except KitError as error:
            raise Exit(f"{name}: {error}", error.exit_code) from None
        except BrokenPipeError:  # the reader of our output left, as `head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise Exit(code=0) from None
        except KeyboardInterrupt:
            raise Exit(f"{name}: stopped; what was measured is kept, the same command goes on", 130) from None

    return guarded


def _sets(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise UnusableInput(f"--set {pair}: write it as KEY=VALUE, for example --set sweep.seeds=[1,2,3]")
    return dict(pair.split("=", 1) for pair in pairs)


def _load(name: str, sets: list[str], prompts: str = "", seeds: int | None = None) -> Any:
    """The scenario with what the command line changes in it."""
    from kit import scenario

    if not name:
        raise UnusableInput("which scenario? --scenario NAME; `invoke list` shows them")
    changes = _sets(sets)
    if seeds is not None:
        if seeds < 1:
            raise UnusableInput(f"--seeds {seeds}: measure at least one")
        changes["sweep.seeds"] = str(list(range(1, seeds + 1)))
    path = scenario.find(name, SCENARIOS)
    if prompts:
        if "own" not in scenario.load(path).datasets:
            raise UnusableInput(f"--prompts: {name} has no data set called `own`; take --scenario own-prompts")
        changes["datasets.own.path"] = f'"{prompts}"'
    return scenario.load(path, changes)


def _number(text: str, name: str) -> int | None:
    """A whole number from the command line; None when it was not given."""
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise UnusableInput(f"--{name} {text}: give a whole number") from None


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _gib(text: str) -> float | None:
    """GiB from the command line; None when they were not given."""
    try:
        return float(text) if text else None
    except ValueError:
        raise UnusableInput(f"--free-gib {text}: give a number of GiB") from None


# ---- before a run ---------------------------------------------------------------------------------------------------


@task(name="list")
@verb
def list_(c: Context) -> None:
    """Show the scenarios as a table: what each asks, its card, arms and size."""
    from kit import overview

    print(overview.scenarios_table(SCENARIOS))


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
        "card": "a card of kit/cards.toml, e.g. L4 or H100; default: the one the scenario expects",
        "free-gib": "free GPU memory before anything is loaded, in GiB, instead of a card",
        "json": "print JSON instead of tables",
    },
)
@verb
def forecast(
    c: Context,
    scenario: str = "",
    set_: list[str] = [],  # noqa: B006 - Invoke hands in its own list
    card: str = "",
    free_gib: str = "",
    json: bool = False,
) -> None:
    """Say, before anything is rented or started, what pool each arm will have and what the draft costs."""
    from kit import forecast as forecasts
    from kit import setup
    from kit.forecast import text

    models = setup.folders(ROOT).models
    found = forecasts.of_scenario(_load(scenario, set_), models, card or None, _gib(free_gib))
    print(text.forecast_json(found) if json else text.forecast_text(found))


@task(
    iterable=["set_"],
    help={"scenario": SCENARIO + "; without one, the machine alone", "set": SETS, "engine": ENGINE},
)
@verb
def doctor(
    c: Context,
    scenario: str = "",
    set_: list[str] = [],  # noqa: B006 - Invoke hands in its own list
    engine: str = "",
) -> None:
    """Look over this machine before a run: each check ok, warn or fail, with the way out. Changes nothing."""
    from kit import doctor as doctors
    from kit import overview, setup

    places = setup.folders(ROOT)
    looked = doctors.Places(models=places.models, datasets=places.datasets, results=places.results)
    rows = doctors.examine(_load(scenario, set_) if scenario else None, looked, engine=engine)
    print(overview.checks_table(rows))
    raise Exit(code=doctors.exit_code(rows))


@task(
    help={
        "scenario": "build for this scenario's [image]; default: the pin in the Dockerfile",
        "base": "another base image in place of the pinned one; every report will say so",
        "platform": "linux/amd64 or linux/arm64; default: this machine's",
        "ca": "a file of certificates that the build's network needs; they do not enter the image",
        "allow-unpinned": UNPINNED,
    }
)
@verb
def build(
    c: Context, scenario: str = "", base: str = "", platform: str = "", ca: str = "", allow_unpinned: bool = False
) -> None:
    """Build the kit's image on the pinned SGLang image, and hold what came out against the pin."""
    from kit import build as builds
    from kit import image as images

    pinned = (_load(scenario, []).image if scenario else None) or images.default(ROOT / "Dockerfile")
    record = ROOT / ".cache" / "image.json"
    certificates = Path(ca) if ca else None
    builds.build(
        pinned, record, _say, base=base, platform=platform, ca=certificates, allow_unpinned=allow_unpinned or bool(base)
    )


@task(iterable=["set_"], help={"scenario": SCENARIO, "set": SETS})
@verb
def fetch(c: Context, scenario: str = "", set_: list[str] = []) -> None:  # noqa: B006 - Invoke hands in its own list
    """Download a scenario's models and data sets by their pins. The only verb that needs the internet; resumable."""
    from kit import fetch as fetches
    from kit import setup

    places = setup.folders(ROOT)
    fetches.fetch(_load(scenario, set_), places.models, places.datasets, _say)


@task
@verb
def selftest(c: Context) -> None:
    """Run the client against an echo of known schedule: its error here, and the chunk rate it can be trusted with."""
    from kit import overview
    from kit.client import probe

    print(overview.selftest_text(probe.selftest()))


# ---- the run --------------------------------------------------------------------------------------------------------


@task(
    iterable=["set_"],
    help={
        "scenario": SCENARIO,
        "set": SETS,
        "engine": ENGINE,
        "prompts": "your own prompts (JSONL), for a scenario with a data set called `own`",
        "seeds": "measure this many seeds, counted from 1, instead of the scenario's",
        "until-decided": "go on with new seeds where a verdict is open, three looks at most; also on a finished run",
        "search": "bisect the concurrencies instead of measuring all of them",
        "like": "repeat a published run with its frozen workloads and pins: folder or archive",
        "no-lock": "leave the GPU clock alone, whatever the scenario says",
        "allow-unpinned": UNPINNED,
    },
)
@verb
def run(
    c: Context,
    scenario: str = "",
    set_: list[str] = [],  # noqa: B006 - Invoke hands in its own list
    engine: str = "",
    prompts: str = "",
    seeds: str = "",
    until_decided: bool = False,
    search: bool = False,
    like: str = "",
    no_lock: bool = False,
    allow_unpinned: bool = False,
) -> None:
    """Measure a scenario and write its report; the same command again goes on where it stopped."""
    from kit import report, setup  # the report too: what is broken there must show before the measuring
    from kit import run as running
    from kit.progress import Terminal

    if until_decided and search:
        raise UnusableInput("--until-decided and --search: take one of them; the first adds seeds, the second loads")
    choices = setup.Choices(engine=engine, no_lock=no_lock, allow_unpinned=allow_unpinned)
    with Terminal() as terminal, setup.published(like) as origin:
        chosen = origin.scenario if origin else _load(scenario, set_, prompts, _number(seeds, "seeds"))
        ready = setup.put_together(chosen, setup.folders(ROOT), choices, terminal.say, origin)
        folder = running.run(ready, terminal, setup.strategy(until_decided, search))
    print(report.write(folder, TEMPLATES, _report_home(folder)))  # report.html lies beside it


@task
@verb
def unlock(c: Context) -> None:
    """Reset a GPU clock lock whose run is gone. A lock that a living run holds stays."""
    from kit import gpu_guard, setup

    released = gpu_guard.release_stale(setup.state_folder(ROOT))
    print("\n".join(released) or "no lock of this kit is left over")


# ---- after a run ----------------------------------------------------------------------------------------------------


def _report_home(folder: Path) -> Path:
    whole = folder.resolve()
    return REPORTS / whole.parent.name / whole.name


@task(name="report", help={"run": RUN + "; default: the newest below results/"})
@verb
def report_(c: Context, run: str = "") -> None:
    """Write the report of a run again from its records, and print its path. Needs no server, Docker or GPU."""
    from kit import publish, report

    with publish.opened(Path(run) if run else report.newest(RESULTS)) as folder:
        print(report.write(folder, TEMPLATES, _report_home(folder)))


@task(
    help={
        "run": RUN,
        "against": "another run of the same scenario, the published one, to compare with",
        "expect": "the manifest hash that the publisher names; another one is refused",
        "json": "print JSON instead of Markdown",
    }
)
@verb
def verify(c: Context, run: str = "", against: str = "", expect: str = "", json: bool = False) -> None:
    """Judge every claim of a run: exit 0 if something was judged and all of it holds, 1 if not, 2 if unusable."""
    if not run:
        raise UnusableInput("which run? --run DIR, below results/ or published/")
    from contextlib import ExitStack

    from kit import publish, report
    from kit.claims import text
    from kit.claims import verify as verifying

    with ExitStack() as stack:
        here = stack.enter_context(publish.opened(Path(run)))
        other = stack.enter_context(publish.opened(Path(against))) if against else None
        found = verifying.verify(here, other, expect or None)
        print(text.as_json(found) if json else report.verification(found, TEMPLATES))
    raise Exit(code=found.exit_code)


@task(
    name="publish",
    help={"run": RUN, "to": "the folder to make; default: published/SCENARIO", "archive": "make TO.tar.gz instead"},
)
@verb
def publish_(c: Context, run: str = "", to: str = "", archive: bool = False) -> None:
    """Make a self-contained copy of a run to hand on: records, workloads, report, checksums, no name of a machine."""
    from kit import publish, report
    from kit.claims import verify as verifying

    source = Path(run) if run else report.newest(RESULTS)
    into = Path(to) if to else ROOT / "published" / source.resolve().parent.name
    made = publish.publish(
        source, into, archive, report=lambda folder: report.render(verifying.load(folder), TEMPLATES)
    )
    print(f"{made.path}: {made.files} files, {made.size_bytes / 1e6:.1f} MB; manifest hash {made.manifest_sha256}")


# ---- for developers -------------------------------------------------------------------------------------------------


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
    """Run all tests; makes the CPU server first. Those that need another missing part are skipped with the reason."""
    if not fast:
        from kit import setup
        from kit.rehearsal import ensure_environment

        ensure_environment(setup.cpu_folder(ROOT), _say)
    c.run(f"{sys.executable} -m pytest" + (" -n 3 --dist loadfile -m 'not server and not docker'" if fast else ""))


@task(
    name="bench-client",
    help={
        "users": "numbers of users, comma-separated",
        "repeats": "runs of each; the median is printed",
        "sglang": "a Python that has SGLang's own client; default: the kit's CPU environment when it is made",
    },
)
@verb
def bench_client(c: Context, users: str = "8,64,256,1024", repeats: int = 3, sglang: str = "") -> None:
    """Hold the client against a server that knows its send times, beside a bare reader and SGLang's own client."""
    given = f" --sglang {sglang}" if sglang else ""
    c.run(f"{sys.executable} -m bench.client --users {users} --repeats {repeats}{given}")


@task
@verb
def lock(c: Context) -> None:
    """Make requirements.lock anew from requirements.in (needs uv)."""
    command = "uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header"
    c.run(f"{command} requirements.in -o requirements.lock")
