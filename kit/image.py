"""What the kit's image is made of and how it is called: the pin, the build context, the labels. Knows no Docker API.

The base and its digest stand in the Dockerfile; a scenario's [image] may name another pinned one. The digest there is
second-hand: not verified by the authors. What is checked is SGLang's version inside (`kit/build.py`).
"""

import hashlib
import io
import re
import tarfile
from pathlib import Path

from kit import __version__
from kit.errors import UnusableInput
from kit.scenario import Image

ROOT = Path(__file__).resolve().parent.parent
KIT = "sglang-speculation-kit"
CONTEXT, SGLANG, BASE = f"{KIT}.context", f"{KIT}.sglang", f"{KIT}.base"
"""Labels of the image: what of the kit is in it, SGLang's version, and what it was built from."""

CLIENT_FILES = ("kit/__init__.py", "kit/children.py", "kit/errors.py", "kit/measurements.py", "kit/client/*.py")
"""What of the kit goes into the image: the client and what it imports."""


def default(dockerfile: Path = ROOT / "Dockerfile") -> Image:
    """The image that the Dockerfile pins, for scenarios without [image]."""
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", dockerfile.read_text(encoding="utf-8"), re.MULTILINE))
    try:
        return Image(ref=arguments["BASE"], sglang=arguments["SGLANG"])
    except KeyError as error:
        raise UnusableInput(f"{dockerfile.name}: ARG {error.args[0]}=… is missing; take the file of the kit") from None


def is_pinned(image: Image) -> bool:
    """Whether the reference ends in a digest."""
    return re.search(r"@sha256:[0-9a-f]{64}$", image.ref) is not None


def is_made_from(image: Image, base: str) -> bool:
    """Whether a base is the pinned one: the digest says it, and the name of a mirror does not matter."""
    return is_pinned(image) and base.partition("@")[2] == image.ref.partition("@")[2]


def require_pin(image: Image, allow_unpinned: bool) -> None:
    """Raises UnusableInput for a reference without a digest, unless that is allowed."""
    if not is_pinned(image) and not allow_unpinned:
        raise UnusableInput(
            f"image.ref {image.ref!r} has no digest: write it as repository:tag@sha256:…, since a tag can move;"
            " or pass --allow-unpinned, and every report will say so"
        )


def built_name(image: Image) -> str:
    """The name under which `invoke build` keeps what it made: one for each reference of a base."""
    return f"{KIT}:{image.sglang}-{hashlib.sha256(image.ref.encode()).hexdigest()[:12]}"


def fingerprint(root: Path = ROOT) -> str:
    """sha256 over everything of the kit that goes into the image; an image with another one is out of date."""
    digest = hashlib.sha256()
    for name, data in _files(root):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def context(ca: Path | None = None, root: Path = ROOT) -> bytes:
    """The build context as a tar file: the same files give the same bytes, so that layers are found again.

    `ca` holds certificates (PEM) for the build stage that downloads; raises UnusableInput when it holds none.
    """
    files = _files(root)
    if ca:
        files.append(("ca/extra.crt", _certificates(ca)))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(_entry("ca", tarfile.DIRTYPE, 0o755))
        for name, data in files:
            tar.addfile(_entry(name, tarfile.REGTYPE, 0o644, len(data)), io.BytesIO(data))
    return out.getvalue()


def build_arguments(image: Image, root: Path = ROOT) -> dict[str, str]:
    """The Dockerfile's arguments for this base."""
    return {"BASE": image.ref, "SGLANG": image.sglang, "KIT_VERSION": __version__, "KIT_CONTEXT": fingerprint(root)}


def _files(root: Path) -> list[tuple[str, bytes]]:
    names = ["Dockerfile", "requirements-client.lock"]
    names += sorted(str(path.relative_to(root)) for pattern in CLIENT_FILES for path in root.glob(pattern))
    return [(name, (root / name).read_bytes()) for name in names]


def _certificates(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnusableInput(f"--ca {path}: {error.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in data:
        raise UnusableInput(f"--ca {path}: no PEM certificate in it")
    return data


def _entry(name: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size = kind, mode, size
    return entry
