"""The shipped Dockerfile and what goes with it, read as text: the real base cannot be pulled in CI."""

import ast
import re
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from kit import image
from kit.errors import UnusableInput
from kit.scenario import Image

DIGEST = "sha256:" + "a" * 64


def test_the_base_is_pinned_by_tag_and_digest() -> None:
    pinned = image.default()
    assert re.fullmatch(r"lmsysorg/sglang:v(\d+\.\d+\.\d+)@sha256:[0-9a-f]{64}", pinned.ref)
    assert f":v{pinned.sglang}@" in pinned.ref, "ARG SGLANG is the tag's version"
    assert image.is_pinned(pinned)


def test_the_dockerfile_says_that_nobody_verified_the_digest() -> None:
    assert "not been\n# verified by the authors" in (image.ROOT / "Dockerfile").read_text()


def test_the_last_stage_begins_at_the_base_and_takes_no_certificates() -> None:
    last = (image.ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert last.startswith("${BASE}\n") and "ca/" not in last and "RUN" not in last


def test_a_dockerfile_without_its_arguments_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    with pytest.raises(UnusableInput, match="ARG BASE"):
        image.default(tmp_path / "Dockerfile")


@pytest.mark.parametrize("ref", ["a/b:1", "a/b:1@sha256:short", "a/b", f"a/b:1@{DIGEST}x"])
def test_what_is_not_pinned_is_refused_unless_allowed(ref: str) -> None:
    with pytest.raises(UnusableInput, match="--allow-unpinned"):
        image.require_pin(Image(ref=ref, sglang="1"), allow_unpinned=False)
    image.require_pin(Image(ref=ref, sglang="1"), allow_unpinned=True)
    image.require_pin(Image(ref=f"a/b:1@{DIGEST}", sglang="1"), allow_unpinned=False)


def test_a_mirror_of_the_pinned_digest_is_the_pinned_base() -> None:
    pinned = Image(ref=f"a/b:1@{DIGEST}", sglang="1")
    assert image.is_made_from(pinned, f"mirror.invalid/a/b:1@{DIGEST}")
    assert not image.is_made_from(pinned, "a/b:1") and not image.is_made_from(pinned, f"a/b:1@{DIGEST[:-1]}b")
    assert not image.is_made_from(Image(ref="a/b:1", sglang="1"), "a/b:1")


def test_two_bases_never_share_a_name() -> None:
    names = {image.built_name(Image(ref=ref, sglang="1")) for ref in (f"a:1@{DIGEST}", f"a:1@{DIGEST[:-1]}b", "a:1")}
    assert len(names) == 3


def test_the_context_is_the_same_bytes_twice_and_holds_only_what_is_named(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\nx\n")
    assert image.context() == image.context()
    with tarfile.open(fileobj=BytesIO(image.context(ca))) as tar:
        names = tar.getnames()
    assert "ca/extra.crt" in names and "kit/client/__main__.py" in names and "kit/run.py" not in names
    with pytest.raises(UnusableInput, match="no PEM certificate"):
        image.context(Path(__file__).parent / "test_plan.py")


def test_the_image_holds_every_module_that_the_client_imports() -> None:
    held = {str(p.relative_to(image.ROOT)) for pattern in image.CLIENT_FILES for p in image.ROOT.glob(pattern)}
    needed = {"kit/client/__main__.py"}
    for _ in range(10):
        needed |= {file for name in set(needed) for file in _imports(image.ROOT / name)}
    assert needed <= held


def test_the_lock_of_the_client_has_hashes_and_no_address() -> None:
    text = (image.ROOT / "requirements-client.lock").read_text()
    assert text.count("--hash=sha256:") > 3 and "://" not in text and "--index" not in text
    wanted = {
        line.split()[0]
        for line in (image.ROOT / "requirements-client.in").read_text().splitlines()
        if line[:1].isalpha()
    }
    assert wanted <= set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))
    everything = (image.ROOT / "requirements.lock").read_text()
    for pin in re.findall(r"^[a-z0-9-]+==\S+", text, re.MULTILINE):
        assert pin in everything, f"{pin}: client and kit differ"


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        for name in (n for n in names if n.startswith("kit")):
            place = name.replace(".", "/")
            found |= {f for f in (f"{place}.py", f"{place}/__init__.py") if (image.ROOT / f).exists()}
    return found
