"""Rows of `invoke doctor`: what is right on this machine, what is not, the way out. Does not know how it is printed."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from kit import gpu, workload
from kit.engine import docker
from kit.errors import KitError, UnusableInput
from kit.measurements import GpuFacts
from kit.models import locate
from kit.scenario import Dataset, Model, Scenario
from kit.workload.pins import checked

IMAGE_BYTES = 40e9
"""Room for an image still to be pulled, with a margin: a public record has 12.2 GB for the smaller runtime variant."""
SHM_BYTES = 1e9
CUDA_13_DRIVER = 580
"""The first driver branch that runs CUDA 13, with which the pinned image is made (NVIDIA's compatibility table)."""


class Check(msgspec.Struct, frozen=True):
    """One row: what was looked at, how it stands, what was seen, and what to do when it is not ok."""

    name: str
    state: Literal["ok", "warn", "fail"]
    detail: str
    way_out: str = ""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The folders that are looked into."""

    models: Path
    datasets: Path
    results: Path


def examine(
    scenario: Scenario | None, places: Places, *, engine: str = "", allow_unpinned: bool = False
) -> list[Check]:
    """Every check; without a scenario those of the machine alone, where Docker and a card may be missing.

    Nothing is downloaded or changed. A row fails only for what the scenario needs.
    """
    chosen = engine or (scenario.engine if scenario else "docker")
    rows = _docker_rows(scenario, allow_unpinned) if chosen == "docker" else []
    rows += gpu.checks(scenario.gpu if scenario else None)
    if chosen == "docker" and (scenario is None or scenario.process.environment == "current"):
        rows += driver_rows(gpu.facts()[0])
    rows += _disk_rows(places)
    if scenario:
        rows += [*_model_rows(scenario, places.models), *_dataset_rows(scenario, places.datasets)]
    return rows


def exit_code(rows: list[Check]) -> int:
    """1 when a check failed, 0 otherwise."""
    return int(any(row.state == "fail" for row in rows))


# ---- Docker ---------------------------------------------------------------------------------------------------------


def _docker_rows(scenario: Scenario | None, allow_unpinned: bool) -> list[Check]:
    """Daemon, GPU runtime, image and shared memory; without a scenario what is missing is a warning."""
    bad: Literal["warn", "fail"] = "fail" if scenario else "warn"
    try:
        with docker.connected() as client:
            rows = [Check("Docker", "ok", docker.describe(client))]
            if scenario is None or scenario.process.environment == "current":
                rows.append(_asked("NVIDIA runtime", bad, partial(_gpu_handed_over, client, scenario)))
            if scenario:
                rows.append(_asked("image", bad, partial(_image, client, scenario, allow_unpinned)))
            rows += [_image_room(client)] if rows[-1].state != "ok" else []
            return rows
    except KitError as error:
        return [_from_error("Docker", bad, error)]


def _gpu_handed_over(client: docker.Client, scenario: Scenario | None) -> str:
    ids = (scenario.gpu.ids or list(range(scenario.gpu.count))) if scenario else [0]
    docker.probe_gpu(client, ids)
    return f"Docker hands over card {', '.join(map(str, ids))}"


def _image(client: docker.Client, scenario: Scenario, allow_unpinned: bool) -> str:
    if scenario.image is None:
        raise UnusableInput("no [image] table in the scenario; add one, or `--engine process`")
    facts = docker.image_facts(client, scenario.image, allow_unpinned)
    pinned = "pinned" if facts["image_pinned"] == "yes" else "NOT pinned"
    return f"SGLang {facts['image_sglang']}, {pinned}, {facts['image_architecture']}"


def _image_room(client: docker.Client) -> Check:
    """Whether an image that is not here yet would fit; unknown where Docker keeps its data out of sight."""
    try:
        free = shutil.disk_usage(docker.data_folder(client)).free
    except OSError:
        return Check("disk for the image", "warn", "Docker's folder cannot be looked into")
    low = free < IMAGE_BYTES
    return Check(
        "disk for the image",
        "warn" if low else "ok",
        f"{free / 1e9:.0f} GB free where Docker keeps images",
        "make room: `docker system df` shows what is there" if low else "",
    )


def driver_rows(cards: list[GpuFacts]) -> list[Check]:
    """The driver against the CUDA that the pinned image is made with."""
    if not cards:
        return []
    branch = re.match(r"\d+", cards[0].driver or "")
    if branch is None:
        return [Check("driver and CUDA", "warn", "the driver does not tell its version")]
    if int(branch[0]) >= CUDA_13_DRIVER:
        return [Check("driver and CUDA", "ok", f"driver {cards[0].driver} runs the image's CUDA 13")]
    detail = f"driver {cards[0].driver} is older than {CUDA_13_DRIVER}, the first for the image's CUDA 13"
    way_out = f"install driver {CUDA_13_DRIVER} or newer, or name an image made with CUDA 12 in [image]"
    return [Check("driver and CUDA", "warn", detail, way_out)]


# ---- disk, weights, data --------------------------------------------------------------------------------------------


def _disk_rows(places: Places) -> Iterator[Check]:
    for name, path in (("models", places.models), ("results", places.results)):
        there = next(p for p in (path, *path.absolute().parents) if p.exists())
        free = shutil.disk_usage(there).free
        text = f"{free / 1e9:.0f} GB free for {path.name}/"
        low = free < 1e9
        if not os.access(there, os.W_OK):
            yield Check(f"disk for {name}", "fail", f"{there} cannot be written", "make it writable, or run elsewhere")
            continue
        yield Check(f"disk for {name}", "warn" if low else "ok", text, "make room" if low else "")
    shm = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").exists() else 0
    small = shm < SHM_BYTES
    way_out = "give this container more: `--shm-size 8g`; the kit's own containers get theirs anyway" if small else ""
    yield Check("shared memory", "warn" if small else "ok", f"/dev/shm holds {shm / 1e9:.1f} GB", way_out)


def _model_rows(scenario: Scenario, models: Path) -> Iterator[Check]:
    if scenario.process.environment == "cpu":
        return
    for model in (m for m in (scenario.model, scenario.draft) if m):
        yield _asked(f"model {model.path}", "fail", partial(_model, model, models))


def _model(model: Model, models: Path) -> str:
    place = locate(model, models)
    size = sum(p.stat().st_size for p in place.rglob("*") if p.is_file())
    note = ", revision not verified" if model.revision == "unverified" else ""
    return f"{place.name}, {size / 1e9:.1f} GB{note}"


def _dataset_rows(scenario: Scenario, datasets: Path) -> Iterator[Check]:
    for name, dataset in scenario.datasets.items():
        yield _asked(f"data set {name}", "fail", partial(_dataset, dataset, datasets))


def _dataset(dataset: Dataset, datasets: Path) -> str:
    if dataset.path:
        if not Path(dataset.path).is_file():
            raise UnusableInput(f"{dataset.path} is not there; give your file with --prompts")
        return f"your own: {Path(dataset.path).name}"
    if dataset.source == "prompts":
        raise UnusableInput("your own file is not named; give it with --set datasets.NAME.path=FILE, or run --prompts")
    seen = [f"{p.file} ({checked(p, datasets)[1][:12]})" for p in workload.source(dataset.source).PINS]
    return ", ".join(seen) or "made from seeds, needs no file"


# ---- rows -----------------------------------------------------------------------------------------------------------


def _asked(name: str, bad: Literal["warn", "fail"], ask: Callable[[], str]) -> Check:
    try:
        return Check(name, "ok", ask())
    except KitError as error:
        return _from_error(name, bad, error)


def _from_error(name: str, bad: Literal["warn", "fail"], error: KitError) -> Check:
    """An error of the kit says what and then, after ": " or "; ", the way out."""
    text = str(error)
    parts = re.split(r"[:;] (?=install|start|`invoke|add|give|correct|or )", text, maxsplit=1)
    return Check(name, bad, parts[0], parts[1] if len(parts) > 1 else "")
