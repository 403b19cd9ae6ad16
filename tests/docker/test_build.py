"""Images built from the shipped Dockerfile with only the base replaced."""

import io
import json
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import docker
import msgspec
import pytest

from kit import build, image
from kit.engine.docker import DockerEngine
from kit.errors import RunFailed, UnusableInput
from kit.scenario import Image
from tests.docker.conftest import STANDIN, certificates, left_over

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]  # the first test makes the base image


def test_a_build_records_what_is_in_the_image(daemon: docker.DockerClient, built: build.Built) -> None:
    assert built.sglang == "0.5.17" and built.image_id.startswith("sha256:") and built.base == STANDIN.ref
    assert any(line.startswith("sglang") for line in built.freeze)
    labels = daemon.images.get(built.name).labels
    assert labels[image.BASE] == STANDIN.ref and labels[f"{image.KIT}.version"] and labels[image.SGLANG] == "0.5.17"
    assert left_over(daemon) == []


def test_no_layer_of_the_image_holds_the_extra_certificate(
    daemon: docker.DockerClient, standin_base: Image, tmp_path: Path
) -> None:
    """A certificate of its own, so that it cannot be in the base already; every byte of every layer is read."""
    if not shutil.which("openssl"):
        pytest.skip("openssl makes the certificate that is searched for")
    own, bundle = tmp_path / "own.pem", tmp_path / "bundle.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kit-test", "-keyout", "/dev/null"]
    subprocess.run([*make, "-out", str(own)], check=True, capture_output=True)
    usual = certificates()
    bundle.write_bytes((usual.read_bytes() if usual else b"") + own.read_bytes())
    made = build.build(standin_base, tmp_path / "image.json", print, ca=bundle, allow_unpinned=True)
    middle = own.read_bytes().splitlines()[5]
    whole = io.BytesIO(b"".join(daemon.images.get(made.name).save()))
    layers = 0
    with tarfile.open(fileobj=whole) as outer:
        for entry in outer.getmembers():
            data = outer.extractfile(entry)
            assert data is None or middle not in data.read(), entry.name
            layers += entry.name.endswith("layer.tar") or entry.size > 10_000
    assert layers > 3


def test_a_base_with_another_sglang_fails_the_build(
    daemon: docker.DockerClient, standin_base: Image, tmp_path: Path
) -> None:
    wrong = Image(ref=standin_base.ref, sglang="0.5.16")
    with pytest.raises(RunFailed, match=r"holds SGLang 0\.5\.17, pinned is 0\.5\.16"):
        build.build(wrong, tmp_path / "image.json", print, ca=certificates(), allow_unpinned=True)
    assert not daemon.images.list(image.built_name(wrong)) and not (tmp_path / "image.json").exists()


def test_a_base_that_cannot_be_had_is_one_line(daemon: docker.DockerClient, tmp_path: Path) -> None:
    absent = Image(ref="127.0.0.1:1/nothing:1@sha256:" + "0" * 64, sglang="1")
    with pytest.raises((RunFailed, UnusableInput)) as caught:
        build.build(absent, tmp_path / "image.json", print)
    assert "\n" not in str(caught.value)


def test_an_image_with_another_client_is_out_of_date(daemon: docker.DockerClient, built: build.Built) -> None:
    stale = Image(ref="kit-test-stale:1", sglang="0.5.17")
    recipe = f'FROM {built.name}\nLABEL {image.CONTEXT}="older"\n'
    daemon.images.build(fileobj=io.BytesIO(recipe.encode()), tag=image.built_name(stale), rm=True)
    try:
        with pytest.raises(UnusableInput, match="another version of the kit's client; `invoke build`"):
            DockerEngine(stale, allow_unpinned=True).check(30000)
    finally:
        daemon.images.remove(image.built_name(stale), force=True)


def test_an_image_from_another_base_than_the_pinned_one_needs_a_word(
    daemon: docker.DockerClient, standin_base: Image, tmp_path: Path
) -> None:
    pinned = Image(ref="example.invalid/sglang:v0.5.17@sha256:" + "0" * 64, sglang="0.5.17")
    ca, base = certificates(), standin_base.ref
    with pytest.raises(UnusableInput, match="has no digest"):
        build.build(pinned, tmp_path / "image.json", print, base=base, ca=ca)
    made = build.build(pinned, tmp_path / "image.json", print, base=base, ca=ca, allow_unpinned=True)
    try:
        assert made.base == base and made.base_digest is None
        with pytest.raises(UnusableInput, match="was built from kit-test-sglang.* and not from the pinned"):
            DockerEngine(pinned).check(30000)
        assert DockerEngine(pinned, allow_unpinned=True).check(30000)["image_pinned"] == "no"
    finally:
        daemon.images.remove(made.name, force=True)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """An image registry of the test's own on the loopback interface."""
    program = shutil.which("docker-registry")
    if not program:
        pytest.skip("docker-registry is not on this machine: pulling by digest is not tested here")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(tmp_path / "r")}},
        "http": {"addr": address},
    }
    (tmp_path / "config.yml").write_text(json.dumps(config))
    with subprocess.Popen([program, "serve", str(tmp_path / "config.yml")], stderr=subprocess.DEVNULL) as process:
        for _ in range(100):
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) == 0:
                    break
            time.sleep(0.1)
        yield address
        process.terminate()


def test_a_pinned_base_is_pulled_by_its_digest(
    daemon: docker.DockerClient, standin_base: Image, registry: str, tmp_path: Path
) -> None:
    """The whole way of the real image, from a registry here: pull by tag and digest, build, check; the pin holds."""
    name = f"{registry}/sglang"
    assert daemon.images.get(standin_base.ref).tag(name, "v0.5.17")
    pushed = [event for event in daemon.images.push(name, "v0.5.17", stream=True, decode=True) if "aux" in event]
    digest = pushed[0]["aux"]["Digest"]
    daemon.images.remove(f"{name}:v0.5.17")
    pinned = Image(ref=f"{name}:v0.5.17@{digest}", sglang="0.5.17")
    said: list[str] = []
    made = build.build(pinned, tmp_path / "image.json", said.append, ca=certificates())
    try:
        assert made.base_digest == digest and said[0] == f"pulling {pinned.ref}"
        assert msgspec.json.decode((tmp_path / "image.json").read_bytes(), type=build.Built) == made
        assert DockerEngine(pinned).check(30000)["image_pinned"] == "yes"
        said.clear()
        build.build(pinned, tmp_path / "image.json", said.append, ca=certificates())
        assert not [line for line in said if line.startswith("pulling")], "what is here is not pulled again"
        wrong = Image(ref=f"{name}:v0.5.17@sha256:{'0' * 64}", sglang="0.5.17")
        with pytest.raises((RunFailed, UnusableInput)):
            build.build(wrong, tmp_path / "image.json", print)
    finally:
        daemon.images.remove(made.name, force=True)
        daemon.images.remove(f"{name}@{digest}", force=True)
