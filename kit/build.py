"""Makes the kit's image on this machine: pulls the base, builds, and holds what came out against the pin.

Only `kit.engine.docker` speaks to the SDK's errors; what goes into the image is `kit.image`'s.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kit import image as images
from kit.engine.docker import Client, connected, find_image, probe_gpu, run_once, translated
from kit.errors import RunFailed
from kit.measurements import write_whole
from kit.scenario import Image

Say = Callable[[str], None]
PULL_STEP_BYTES = 500_000_000

ASK_SGLANG = "import sglang; print(sglang.__version__)"


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """What a build made. `base_digest` is the registry's for what was pulled, None for a base made on this machine."""

    name: str
    image_id: str
    architecture: str
    base: str
    base_id: str
    base_digest: str | None
    sglang: str
    kit_context: str
    freeze: list[str]


def build(
    pinned: Image,
    record: Path,
    say: Say,
    *,
    base: str = "",
    platform: str = "",
    ca: Path | None = None,
    gpus: list[int] | None = None,
    allow_unpinned: bool = False,
) -> Built:
    """Builds the image for `pinned` and writes what it holds to `record` (JSON).

    `base` takes another image in place of the pinned one, which every report will say. With `gpus`, a daemon that
    cannot hand out cards is found out before the base (12 GB) is pulled. Raises UnusableInput, or RunFailed when the
    build fails or SGLang inside is another version than the pinned one.
    """
    made_from = Image(ref=base, sglang=pinned.sglang) if base else pinned
    images.require_pin(made_from, allow_unpinned)
    with connected() as client:
        if gpus is not None:
            probe_gpu(client, gpus)
        with translated("building the image", RunFailed):
            found = _base(client, made_from.ref, platform, say)
            name = images.built_name(pinned)
            _build(client, name, made_from, ca, platform, say)
            built = _look(client, name, made_from, found)
    write_whole(record, msgspec.json.format(msgspec.json.encode(built)))
    say(f"{name}: SGLang {built.sglang}, {len(built.freeze)} packages, {built.image_id[:19]}")
    return built


def _base(client: Client, ref: str, platform: str, say: Say) -> dict[str, Any]:
    """The base's facts; it is pulled when this machine does not have it."""
    found = find_image(client, ref)
    if found is None:
        say(f"pulling {ref}")
        _pull(client, ref, platform, say)
        found = find_image(client, ref)
    if found is None:
        raise RunFailed(f"{ref}: pulled, but Docker does not know it afterwards; pull it by hand: docker pull {ref}")
    return found


def _pull(client: Client, ref: str, platform: str, say: Say) -> None:
    sizes: dict[str, tuple[int, int]] = {}
    told = 0
    for event in client.api.pull(ref, stream=True, decode=True, platform=platform or None):
        _raise_for(event, f"pulling {ref}")
        progress = event.get("progressDetail") or {}
        if event.get("status") == "Downloading" and progress.get("total"):
            sizes[event["id"]] = (progress["current"], progress["total"])
        elif event.get("status") == "Download complete" and event["id"] in sizes:
            sizes[event["id"]] = (sizes[event["id"]][1],) * 2
        done, total = (sum(pair) for pair in zip(*sizes.values(), strict=True)) if sizes else (0, 0)
        if done - told >= PULL_STEP_BYTES:
            told = done
            say(f"pulling: {done / 1e9:.1f} of {total / 1e9:.1f} GB known so far")


def _build(client: Client, name: str, base: Image, ca: Path | None, platform: str, say: Say) -> None:
    events = client.api.build(
        fileobj=io.BytesIO(images.context(ca)),
        custom_context=True,
        tag=name,
        buildargs=images.build_arguments(base),
        platform=platform or None,
        rm=True,
        forcerm=True,
        decode=True,
    )
    for event in events:
        _raise_for(event, "the build")
        text = event.get("stream", "").strip()
        if text.startswith("Step "):
            say(text)


def _raise_for(event: dict[str, Any], doing: str) -> None:
    if "error" in event:
        raise RunFailed(f"{doing} failed: {' '.join(str(event['error']).split())}")


def _look(client: Client, name: str, base: Image, base_facts: dict[str, Any]) -> Built:
    """Asks the built image itself; an image of another SGLang than the pinned one is removed again."""
    found = find_image(client, name) or {}
    version = run_once(client, name, ["python3", "-c", ASK_SGLANG]).strip()
    if version != base.sglang:
        client.images.remove(name, force=True)
        raise RunFailed(
            f"{base.ref} holds SGLang {version}, pinned is {base.sglang}: a wrong digest or tag; correct [image] in"
            " the scenario or the ARGs in the Dockerfile"
        )
    digests = [d.partition("@")[2] for d in base_facts.get("RepoDigests") or []]
    return Built(
        name=name,
        image_id=found["Id"],
        architecture=found["Architecture"],
        base=base.ref,
        base_id=base_facts["Id"],
        base_digest=digests[0] if digests else None,
        sglang=version,
        kit_context=images.fingerprint(),
        freeze=run_once(client, name, ["python3", "-m", "pip", "freeze"]).splitlines(),
    )
