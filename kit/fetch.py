"""Gets a scenario's weights and data sets by their pins: the only step that needs the internet. The hub library's home.

`HF_TOKEN` is read from the environment and written nowhere. What nobody has verified yet is fetched at its branch, and
what was seen (commit, sha256) is kept in `pins.json` beside the models folder, for the pins in the scenario.
"""

import hashlib
import http.client
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kit import workload
from kit.errors import RunFailed, UnusableInput
from kit.measurements import write_whole
from kit.models import folder_name
from kit.scenario import Model, Scenario
from kit.workload.pins import UNVERIFIED, Pin

Say = Callable[[str], None]
WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.bin", "LICENSE*"]
"""Of a repository: weights, configuration, tokenizer and licence; not its pictures, nor weights of other programs."""
PIECE_BYTES = 1 << 20
STEP_BYTES = 100 << 20
AGAIN = "the same command goes on where it stopped"


class Pins(msgspec.Struct, kw_only=True):
    """What was seen when it was fetched: the commit of each model's repository, the sha256 of each data file."""

    models: dict[str, str] = {}
    datasets: dict[str, str] = {}


def fetch(scenario: Scenario, models: Path, datasets: Path, say: Say) -> None:
    """Gets what is missing; what is here already is not asked for again.

    Raises UnusableInput for a pin that cannot be right, RunFailed when the way there breaks.
    """
    for model in (m for m in (scenario.model, scenario.draft) if m):
        fetch_model(model, models, say)
    for pin in {
        p.file: p for d in scenario.datasets.values() if not d.path for p in workload.source(d.source).PINS
    }.values():
        fetch_file(pin, datasets, models.parent / "pins.json", say)


def fetch_model(model: Model, models: Path, say: Say) -> None:
    """Gets one model whole or not at all under its final name; a folder of the reader's own is left alone."""
    if "/" not in model.path or Path(model.path).is_dir():
        say(f"{model.path}: a folder of your own, nothing to fetch")
        return
    place = models / folder_name(model)
    if place.is_dir():
        say(f"{place.name}: here already")
        return
    part = models / f"{place.name}.part"
    part.mkdir(parents=True, exist_ok=True)
    commit = _snapshot(model, part, say)
    shutil.rmtree(part / ".cache", ignore_errors=True)  # the hub library's own notes
    part.rename(place)
    _note(models.parent / "pins.json", say, model=(model, commit))


def _snapshot(model: Model, part: Path, say: Say) -> str:
    """Downloads into `part`, going on with what is there; returns the commit."""
    import huggingface_hub

    asked = None if model.revision in ("", UNVERIFIED) else model.revision
    token = os.environ.get("HF_TOKEN") or False  # never one that lies about on this machine
    with _hub_errors(model):
        info = huggingface_hub.HfApi().model_info(model.path, revision=asked, files_metadata=True, token=token)
        if not info.sha:
            raise RunFailed(f"{model.path}: the hub names no commit; try again later")
        _check_room(part, sum(s.size or 0 for s in info.siblings or []), model.path)
        say(f"{model.path} at {info.sha}: fetching")
        huggingface_hub.snapshot_download(
            model.path, revision=info.sha, local_dir=part, allow_patterns=WANTED, token=token
        )
    return str(info.sha)


@contextmanager
def _hub_errors(model: Model) -> Iterator[None]:
    """One line for what the hub and the way to it can say."""
    import huggingface_hub.errors as errors
    from httpx2 import HTTPError  # what the hub library speaks HTTP with

    try:
        yield
    except errors.GatedRepoError:
        raise UnusableInput(f"{model.path}: gated; accept its terms on its page, then set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise UnusableInput(f"{model.path}: has no revision {model.revision}; correct it in the scenario") from None
    except errors.RepositoryNotFoundError:
        raise UnusableInput(f"{model.path}: no such model, or a private one that needs HF_TOKEN") from None
    except (HTTPError, errors.OfflineModeIsEnabled, OSError) as error:
        text = " ".join(str(error).split())[:200]
        raise RunFailed(f"{model.path}: {type(error).__name__}: {text}; {AGAIN}") from None


def fetch_file(pin: Pin, folder: Path, pins: Path, say: Say) -> None:
    """Gets one data file and holds it against its sha256; a wrong one is removed."""
    place = folder / pin.file
    if place.is_file():
        say(f"{pin.file}: here already")
        return
    part = folder / f"{pin.file}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    _download(pin, part, say)
    with part.open("rb") as file:
        seen = hashlib.file_digest(file, "sha256").hexdigest()
    if pin.sha256 not in (UNVERIFIED, seen):
        part.unlink()
        raise UnusableInput(
            f"{pin.file}: sha256 is {seen}, pinned is {pin.sha256}: the source has changed, or the way there changes"
            " files; it was not kept"
        )
    part.rename(place)
    _note(pins, say, dataset=(pin, seen))


def _download(pin: Pin, part: Path, say: Say) -> None:
    """Appends what is missing of the file to `part`; begins anew when the server cannot go on."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(pin.address, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.status != http.client.PARTIAL_CONTENT:
                have = 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else None
            _check_room(part.parent, (total or 0) - have, pin.file)
            _copy(answer, part, have, total, pin, say)
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # the part is whole, or longer than the file
            part.unlink()
            return _download(pin, part, say)
        raise RunFailed(f"{pin.file}: {pin.address} answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise RunFailed(f"{pin.file}: {pin.address}: {getattr(error, 'reason', error)}; {AGAIN}") from None
    return None


def _copy(answer: Any, part: Path, have: int, total: int | None, pin: Pin, say: Say) -> None:
    of = f" of {total / 1e6:.1f}" if total else ""
    say(f"{pin.file}: fetching{f' from byte {have}' if have else ''}, {(total or 0) / 1e6:.1f} MB in all")
    told = have
    with part.open("ab" if have else "wb") as file:
        while piece := answer.read(PIECE_BYTES):
            file.write(piece)
            have += len(piece)
            if have - told >= STEP_BYTES:
                told = have
                say(f"{pin.file}: {have / 1e6:.1f}{of} MB")
    if total is not None and have < total:
        raise RunFailed(f"{pin.file}: the connection ended after {have} of {total} bytes; {AGAIN}")


def _check_room(folder: Path, needed_bytes: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise UnusableInput(
            f"{what}: needs {needed_bytes / 1e9:.1f} GB, {folder.name}/ has {free / 1e9:.1f} GB free; make room, or let"
            " KIT_MODELS or KIT_DATASETS name a folder on another disk"
        )


def _note(path: Path, say: Say, model: tuple[Model, str] | None = None, dataset: tuple[Pin, str] | None = None) -> None:
    """Keeps what was seen in pins.json, and says what is to be pinned now."""
    pins = read_pins(path)
    if model:
        pins.models[model[0].path] = model[1]
        if model[0].revision in ("", UNVERIFIED):
            say(f"{model[0].path}: the scenario pins no verified revision; seen {model[1]} (kept in {path.name})")
    if dataset:
        pins.datasets[dataset[0].file] = dataset[1]
        if UNVERIFIED in (dataset[0].sha256, dataset[0].revision):
            say(f"{dataset[0].file}: not verified by the authors; seen sha256 {dataset[1]} (kept in {path.name})")
    write_whole(path, msgspec.json.format(msgspec.json.encode(pins), indent=2))


def read_pins(path: Path) -> Pins:
    """What earlier fetches saw; empty when there was none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Pins)
    except FileNotFoundError:
        return Pins()
    except msgspec.MsgspecError as error:
        raise UnusableInput(f"{path.name}: not the kit's: {error}; move it away") from None
