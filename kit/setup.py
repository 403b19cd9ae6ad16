"""Puts a run together from a scenario and its surroundings: engine, models, data folders. Holds no logic of theirs."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kit import gpu, publish
from kit.adaptive import Search, UntilDecided
from kit.client import probe
from kit.engine import Engine
from kit.errors import UnusableInput
from kit.like import Like
from kit.like import like as like_run
from kit.measurements import GpuFacts, SelfTest, WorkloadRecord
from kit.models import locate
from kit.run import WHOLE, Strategy
from kit.run_folder import Setup, measuring
from kit.scenario import Dataset, FlagValue, Scenario
from kit.scrub import Scrubber


class Folders(msgspec.Struct, frozen=True, kw_only=True):
    """Where the kit keeps things: below the checkout, or where the environment says (`KIT_MODELS`, `KIT_DATASETS`)."""

    root: Path
    results: Path
    models: Path
    datasets: Path
    cache: Path


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line may choose beside the scenario."""

    engine: str = ""
    no_lock: bool = False
    allow_unpinned: bool = False


class _Server(msgspec.Struct, frozen=True):
    """The SGLang of the process engine: its Python, its models and what it needs on this machine."""

    python: Path
    models: Path
    env: dict[str, str]
    flags: dict[str, FlagValue]


def state_folder(root: Path) -> Path:
    """Where markers of locks and servers lie, for the next run to find."""
    return root / ".cache" / "state"


def machine_lock() -> Path:
    """What one run of this user holds while it measures, whatever checkout it comes from."""
    return Path(tempfile.gettempdir()) / f"sglang-speculation-kit-{os.getuid()}.lock"


def cpu_folder(root: Path) -> Path:
    """Where the kit keeps the CPU server that it makes."""
    return root / ".cache" / "cpu-sglang"


@contextmanager
def published(place: str) -> Iterator[Like | None]:
    """A published run to repeat, as long as the context lasts; None when no place is named."""
    if not place:
        yield None
        return
    with publish.opened(Path(place)) as folder:
        yield like_run(folder)


def strategy(until_decided: bool, search: bool) -> Strategy:
    """How a run decides what to measure."""
    if until_decided:
        return UntilDecided()
    return Search() if search else WHOLE


class _ModelConfig(msgspec.Struct, frozen=True):
    max_position_embeddings: int | None = None


def folders(root: Path) -> Folders:
    """The kit's folders for a checkout at `root`."""
    return Folders(
        root=root,
        results=root / "results",
        models=Path(os.environ.get("KIT_MODELS", root / "models")),
        datasets=Path(os.environ.get("KIT_DATASETS", root / "datasets")),
        cache=root / ".cache",
    )


def put_together(
    scenario: Scenario,
    places: Folders,
    choices: Choices,
    say: Callable[[str], None],
    like: Like | None = None,
) -> Setup:
    """Everything `kit.run` needs; raises UnusableInput when something is missing.

    With `like`, the workloads are those of a published run, byte for byte, and so is the engine, unless chosen.
    """
    if choices.engine not in ("", "process", "docker"):
        raise UnusableInput(f"--engine {choices.engine}: there are process and docker")
    server = _server(scenario, places, say)
    scenario = _with_flags(scenario, server.flags)
    model = locate(scenario.model, server.models)
    draft = locate(scenario.draft, server.models) if scenario.draft else None
    cards, note = gpu.facts()
    indexes = gpu.select(scenario.gpu, cards)
    name = choices.engine or (like.engine if like else scenario.engine)
    engine = _engine(name, scenario, server, places, choices, indexes)
    with measuring(machine_lock()):  # the self-test would disturb a run under way, and be disturbed
        tested = _selftest(say)
    return Setup(
        scenario=scenario,
        engine=engine,
        freeze=like.freeze if like else _Freezer(scenario, places, model),
        selftest=tested,
        model_path=model,
        draft_path=draft,
        env={**server.env, **_visible(cards, indexes)},
        cards=cards,
        cards_note=note,
        indexes=indexes,
        client_cores=engine.client_cores,
        results=places.results,
        state=state_folder(places.root),
        scrubber=_scrubber(places, server),
        no_lock=choices.no_lock,
        unpinned=choices.allow_unpinned,
        commit=_commit(places.root),
        like=like.origin if like else None,
        lock=machine_lock(),
    )


class _Freezer:
    """Binds the workloads to this scenario's tokenizer, data folder and lengths."""

    def __init__(self, scenario: Scenario, places: Folders, model: Path) -> None:
        self._datasets: dict[str, Dataset] = scenario.datasets
        self._places, self._model = places, model

    def __call__(self, dataset: str, seed: int, requests: int, path: Path) -> WorkloadRecord:
        from kit import workload

        context = workload.Context(
            datasets=self._places.datasets,
            tokenizer=self._model,
            base=Path.cwd(),
            context_tokens=_context_tokens(self._model),
        )
        return workload.write(workload.freeze(dataset, self._datasets[dataset], seed, requests, context), path)


def _context_tokens(model: Path) -> int | None:
    """The longest sequence that the model's own config.json allows."""
    config = model / "config.json"
    if not config.is_file():
        return None
    return msgspec.json.decode(config.read_bytes(), type=_ModelConfig).max_position_embeddings


def _server(scenario: Scenario, places: Folders, say: Callable[[str], None]) -> _Server:
    if scenario.process.environment == "current":
        return _Server(Path(sys.executable), places.models, {}, {})
    from kit.rehearsal import ensure_environment

    cpu = ensure_environment(cpu_folder(places.root), say)
    return _Server(cpu.python, cpu.models, cpu.env, {**cpu.flags})


def _with_flags(scenario: Scenario, flags: dict[str, FlagValue]) -> Scenario:
    """Lays what this server needs on this machine under the scenario's own flags, so that it is recorded with them."""
    server = msgspec.structs.replace(scenario.server, flags={**flags, **scenario.server.flags})
    return msgspec.structs.replace(scenario, server=server)


def _visible(cards: list[GpuFacts], indexes: list[int]) -> dict[str, str]:
    """Shows the server the chosen cards only, where there are others; by UUID, since indexes depend on the order."""
    if len(cards) == len(indexes):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(c.uuid or str(c.index) for c in cards if c.index in indexes)}


def _engine(
    name: str, scenario: Scenario, server: _Server, places: Folders, choices: Choices, indexes: list[int]
) -> Engine:
    if name == "docker":
        from kit.engine.docker import DockerEngine

        if scenario.image is None:
            raise UnusableInput(
                f"{scenario.name}: no [image] table, and the docker engine needs one; or --engine process"
            )
        gpus = indexes if scenario.process.environment == "current" else None
        return DockerEngine(scenario.image, allow_unpinned=choices.allow_unpinned, gpus=gpus)
    from kit.engine.process import ProcessEngine

    return ProcessEngine(server.python, Path(sys.executable), state_folder(places.root))


def _selftest(say: Callable[[str], None]) -> SelfTest:
    result = probe.selftest()
    say(f"client self-test: trusted up to {result.trusted_chunks_per_s:,.0f} chunks/s on this machine")
    return result


def _scrubber(places: Folders, server: _Server) -> Scrubber:
    return Scrubber(
        {
            "kit": places.root,
            "models": server.models,
            "datasets": places.datasets,
            "cache": places.cache,
            "python": server.python.parent.parent,
            "prefix": Path(sys.base_prefix),
            "home": Path.home(),
        }
    )


def _commit(root: Path) -> str | None:
    """The kit's commit, with "+changes" when the tree differs; None outside a checkout."""
    git = ["git", "-C", str(root)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if head.returncode:
        return None
    status = [*git, "status", "--porcelain", "--untracked-files=no"]
    changes = subprocess.run(status, capture_output=True, text=True, check=False)
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")
