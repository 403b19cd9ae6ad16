"""A real daemon, a base image made on the spot, and the kit's image built upon it."""

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import docker
import msgspec
import pytest
from docker.models.containers import Container

from kit import build, image
from kit.engine import Launch, owner, supervisor
from kit.engine.docker import OWNER, DockerEngine
from kit.errors import UnusableInput
from kit.rehearsal import CpuServer, ensure_environment
from kit.rehearsal.environment import NGRAM_BUILD, STANDINS
from kit.scenario import Image
from tests.docker import debian

FAKES = debian.ROOT / "tests" / "fakes"
DEBIAN = "kit-test-debian:1"
STANDIN = Image(ref="kit-test-sglang:0.5.17", sglang="0.5.17")
"""The fake SGLang of tests/fakes in a Debian, in the place of the real image."""


@pytest.fixture(scope="session")
def daemon() -> Iterator[docker.DockerClient]:
    """This machine's daemon; skips loudly when there is none."""
    try:
        client = docker.from_env()
    except docker.errors.DockerException:
        pytest.skip("no Docker daemon answers: start dockerd (CI does) to run the container tests")
    yield client
    client.close()


@pytest.fixture(scope="session")
def debian_image(daemon: docker.DockerClient) -> str:
    """A Debian with Python as an image."""
    if not daemon.images.list(DEBIAN):
        if not debian.TAR.exists() and (os.getuid() or not shutil.which("debootstrap")):
            pytest.skip("the base image is made by debootstrap as root, and there is none of it here")
        repository, _, tag = DEBIAN.partition(":")
        subprocess.run(["docker", "import", str(debian.base_tar()), f"{repository}:{tag}"], check=True)
    return DEBIAN


@pytest.fixture(scope="session")
def standin_base(daemon: docker.DockerClient, debian_image: str) -> Image:
    """A base image that holds the fake SGLang."""
    recipe = f"""
        FROM {debian_image}
        COPY fakes /opt/fakes
        RUN echo '__version__ = "0.5.17"' >> /opt/fakes/sglang/__init__.py
        ENV PYTHONPATH=/opt/fakes
    """
    daemon.images.build(fileobj=_context(recipe), custom_context=True, tag=STANDIN.ref, rm=True, forcerm=True)
    return STANDIN


@pytest.fixture(scope="session")
def built(standin_base: Image, tmp_path_factory: pytest.TempPathFactory) -> build.Built:
    """The kit's image from the shipped Dockerfile with only the base replaced, and nothing left of killed runs."""
    record = tmp_path_factory.mktemp("build") / "image.json"
    try:
        made = build.build(standin_base, record, print, ca=certificates(), allow_unpinned=True)
    except UnusableInput as error:
        pytest.skip(f"the image cannot be built here: {error}")
    DockerEngine(STANDIN, allow_unpinned=True).clean()  # what killed tests left would be counted as a later test's
    return made


@pytest.fixture
def engine(built: build.Built) -> DockerEngine:
    return DockerEngine(STANDIN, allow_unpinned=True)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """A fake server to start, with a model folder and a workload."""
    return make_launch(tmp_path)


def make_launch(folder: Path, label: str = "smoke-run-1-b1-1-plain", **env: str) -> Launch:
    model, workloads = folder / "weights" / "tiny", folder / "workloads"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    workloads.mkdir()
    lines = (f'{{"index": {i}, "text": "prompt {i}", "output_len": 16, "input_len": 2}}' for i in range(64))
    (workloads / "w.jsonl").write_text("\n".join(lines) + "\n")
    return Launch(
        argv=["-m", "sglang.launch_server", "--model-path", str(model), "--host", "127.0.0.1", "--port", "30000"],
        env=env,
        models=[model],
        workloads=workloads,
        log=folder / "server.log",
        port=30000,
        label=label,
    )


def certificates() -> Path | None:
    """Certificates that this machine's way to the package registry needs beside the usual ones."""
    name = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    return Path(name) if name and Path(name).is_file() else None


def left_over(daemon: docker.DockerClient) -> list[str]:
    """Everything with the kit's label on the daemon that is ours or nobody's; a run beside the tests is not counted."""
    mark = {"label": OWNER}
    found = {c.name: c.labels for c in daemon.containers.list(all=True, filters=mark, ignore_removed=True)}
    for kind in (daemon.networks, daemon.volumes):
        found |= {thing.name: thing.attrs["Labels"] for thing in kind.list(filters=mark)}
    return [name for name, labels in found.items() if not _is_anothers(labels[OWNER])]


def _is_anothers(label: str) -> bool:
    """Whether the owner lives and is neither this process nor a child of it."""
    process = supervisor.process(msgspec.json.decode(label, type=owner.Owner).pid)
    return process is not None and os.getpid() not in (process.pid, process.parent)


@pytest.fixture(scope="session")
def cpu_base(daemon: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A base image with the real SGLang of the rehearsal in it, for this machine's CPU; NGRAM's trie is built in it."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the rehearsal's environment is of this Python, and the image's Python is 3.11")
    server = ensure_environment(debian.ROOT / ".cache" / "cpu-sglang", print)
    reference = f"kit-test-cpu:{server.models.parent.name}-{_kept_apart(server)}"
    if not daemon.images.list(reference):
        _import_cpu_base(server, f"{reference}-bare", tmp_path_factory.mktemp("cpu") / "cpu.tar")
        recipe = f"""
            FROM {reference}-bare
            RUN apt-get update -q && apt-get install -qy --no-install-recommends g++
            RUN python3 -c '{NGRAM_BUILD}'
        """
        daemon.images.build(fileobj=_context(recipe), custom_context=True, tag=reference, rm=True, forcerm=True)
    return Image(ref=reference, sglang="0.5.23")


def _kept_apart(server: CpuServer) -> str:
    """A hash of all that the image takes from this checkout: another one, or other stand-ins, is another image."""
    files = [p for p in sorted(STANDINS.rglob("*.py")) if "__pycache__" not in p.parts]
    parts = [str(server.python), str(STANDINS), str(sorted(server.env.items())), *(p.read_text() for p in files)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _import_cpu_base(server: CpuServer, reference: str, tar: Path) -> None:
    venv = server.python.parent.parent
    packages = venv / "lib" / "python3.11" / "site-packages"
    files = {"usr/lib/python3/dist-packages/rehearsal.pth": f"{packages}\n"}
    debian.with_folders(
        [packages, venv / "bin" / "ninja", STANDINS], files, {"usr/local/bin/ninja": venv / "bin" / "ninja"}, tar
    )
    env = [f"--change=ENV {key}={value}" for key, value in server.env.items() if key != "PATH"]
    subprocess.run(["docker", "import", *env, str(tar), reference], check=True, stdout=subprocess.DEVNULL)
    tar.unlink()


def containers(daemon: docker.DockerClient, launch: Launch, part: str) -> list[Container]:
    """The containers of a launch that are its server, or its client."""
    mark = {"label": f"{image.KIT}.run={launch.label}"}
    return [c for c in daemon.containers.list(all=True, filters=mark) if c.name.endswith(part)]


def in_process(statement: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """Runs a statement in a process of its own, which ends as the verbs do."""
    return subprocess.run(
        runner(statement), env={**os.environ, **env}, cwd=debian.ROOT, capture_output=True, text=True, check=False
    )


def runner(statement: str) -> list[str]:
    """The command for a process that runs a statement; SIGTERM ends it in order, as in tasks.py."""
    lines = [
        "import signal, sys, time",
        "from pathlib import Path",
        "from kit.engine.docker import DockerEngine",
        "from kit.errors import KitError",
        "from tests.docker.conftest import STANDIN, make_launch",
        "def stop(*_): raise KeyboardInterrupt",
        "signal.signal(signal.SIGTERM, stop)",
        "try:",
        *(f"    {line}" for line in statement.splitlines()),
        "except KitError as error:",
        "    sys.exit(sys.stderr.write(f'{error}\\n') and error.exit_code)",
    ]
    return [sys.executable, "-c", "\n".join(lines)]


def _context(recipe: str) -> io.BytesIO:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.add(FAKES, "fakes", filter=_plain)
        data = "\n".join(line.strip() for line in recipe.strip().splitlines()).encode()
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(data)
        tar.addfile(entry, io.BytesIO(data))
    out.seek(0)
    return out


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    entry.mtime = 0
    return None if "__pycache__" in entry.name else entry
