"""Makes, once per machine, the environment in which SGLang runs on the CPU, and says how a server is started in it.

It knows packages and folders. It does not know scenarios, ports or what SGLang prints, and never imports torch.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit.errors import UnusableInput

TORCH = "torch==2.13.0"
HERE = Path(__file__).parent
LOCK = HERE / "requirements.lock"
STANDINS = HERE / "standins"
MODEL_SOURCES = (HERE / "make_models.py", HERE / "corpus.txt")
MARKER = "complete"
APT_PACKAGES = {"venv": "python3-venv", "compiler": "g++"}
# One thread: two workers on two busy cores made EAGLE3 ten times slower than one.
CPU_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",  # without it SGLang asks for vllm
    "SGLANG_CPU_OMP_THREADS_BIND": "0",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": "rehearsal_models",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling costs EAGLE3 half a minute of warm-up
    "HF_HUB_OFFLINE": "1",
    "PYTHONNOUSERSITE": "1",
}
CPU_FLAGS: dict[str, str | int | bool] = {
    "device": "cpu",
    "load-format": "dummy",
    "max-total-tokens": 20000,  # otherwise SGLang takes most of the machine's memory, and 45 s to do it
    "max-running-requests": 16,
    "skip-server-warmup": True,
}
NGRAM_BUILD = "from sglang.kernels.ops.speculative.ngram_corpus import get_ngram_corpus_cls as build; build()"

Progress = Callable[[str], None]


@dataclass(frozen=True)
class CpuServer:
    """How to start SGLang on this machine's CPU: `python -m sglang.launch_server` with `env` and `flags`.

    `env` is laid over the caller's environment. `flags` are long options without their dashes, True for a bare one; a
    scenario may override them. `models` holds `tiny-qwen3` and `tiny-eagle3`.
    """

    python: Path
    env: dict[str, str]
    flags: dict[str, str | int | bool]
    models: Path


def ensure_environment(cache: Path, progress: Progress) -> CpuServer:
    """Return the environment under `cache`, making what is missing; a few minutes and 1.5 GB the first time.

    Two runs at once are safe: the second waits. One that was cut short is made anew. Raises UnusableInput when the
    machine lacks python3-venv or a C++ compiler, or when a package cannot be had.
    """
    root = cache.resolve() / environment_key()
    models = root / f"models-{_digest(MODEL_SOURCES)}"
    python = root / "venv" / "bin" / "python"
    server = CpuServer(python, _server_env(root), dict(CPU_FLAGS), models)
    if (root / MARKER).exists() and models.exists():
        return server
    cache.mkdir(parents=True, exist_ok=True)
    with _only_one(cache / f"{root.name}.lock", progress):
        if not (root / MARKER).exists():
            _make(root, server, progress)
        if not models.exists():
            _make_models(server, progress)
    return server


def environment_key() -> str:
    """Return what tells one environment from another: the lock's content, torch's version and Python's."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"py{python}-{_digest((LOCK,), TORCH)}"


def _digest(files: tuple[Path, ...], *words: str) -> str:
    digest = hashlib.sha256("\n".join(words).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _server_env(root: Path) -> dict[str, str]:
    # PATH: NGRAM's build calls ninja, which lies in the environment. The cache: nothing is left in the home folder.
    path = os.pathsep.join([str(root / "venv" / "bin"), os.environ.get("PATH", os.defpath)])
    return CPU_ENVIRONMENT | {"PATH": path, "PYTHONPATH": str(STANDINS), "SGLANG_CACHE_DIR": str(root / "sglang")}


@contextmanager
def _only_one(lock: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock file until this process and what it started have ended, however they end."""
    with lock.open("w") as held:
        os.set_inheritable(held.fileno(), True)  # pip outlives a killed run: the next one has to wait for it
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"another run is making the CPU server's environment; waiting for it ({lock})")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _make(root: Path, server: CpuServer, progress: Progress) -> None:
    """Make the environment in place and mark it last: one without its mark is thrown away."""
    check_tools()
    started = time.monotonic()
    if root.exists():
        progress(f"{root} was left half made; making it anew")
        shutil.rmtree(root)
    locked_lines = LOCK.read_text(encoding="utf-8").splitlines()
    packages = len({line.partition("==")[0] for line in locked_lines if "==" in line and "win32" not in line})
    _step(progress, 1, "a virtual environment", [sys.executable, "-m", "venv", str(root / "venv")])
    _step(progress, 2, f"{TORCH}, up to 0.9 GB", _pip(server, ["--no-deps", TORCH]))
    locked = ["--no-deps", "--require-hashes", "--requirement", str(LOCK)]
    _step(progress, 3, f"SGLang 0.5.23 and {packages - 1} packages more, by hash", _pip(server, locked))
    _mend_torch(server, progress)
    _step(progress, 4, "NGRAM's trie, compiled", [str(server.python), "-c", NGRAM_BUILD], server.env)
    (root / MARKER).write_text(f"{TORCH}\n", encoding="utf-8")
    progress(f"the CPU server's environment is ready after {time.monotonic() - started:.0f} s ({root})")


def check_tools() -> None:
    """Raise UnusableInput, naming the apt-get command, when the machine lacks what cannot come from a package index."""
    missing = []
    if importlib.util.find_spec("ensurepip") is None:
        missing.append(APT_PACKAGES["venv"])
    if shutil.which(os.environ.get("CXX", "c++")) is None:  # what NGRAM's build calls
        missing.append(APT_PACKAGES["compiler"])
    if missing:
        names = " ".join(missing)
        raise UnusableInput(f"the CPU server needs {names}, which this machine lacks: apt-get install {names}")


def _mend_torch(server: CpuServer, progress: Progress) -> None:
    """Where the index handed out torch's CUDA build, which does not load without its libraries, install those too."""
    if _imports_torch(server):
        return
    wheels = "point pip at PyTorch's CPU wheels (PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS)"
    progress(
        f"this index's torch is a CUDA build and needs its libraries, about 3 GB; to avoid them, stop and {wheels}"
    )
    _step(progress, 3, f"the libraries that {TORCH} is linked to", _pip(server, [TORCH]))
    if not _imports_torch(server):
        raise UnusableInput(f"{TORCH} does not import in {server.python.parent.parent}; {wheels}, then run again")


def _imports_torch(server: CpuServer) -> bool:
    command = [str(server.python), "-c", "import torch"]
    return subprocess.run(command, capture_output=True, check=False, env=_clean_env(), timeout=300).returncode == 0


def _pip(server: CpuServer, arguments: list[str]) -> list[str]:
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    return [str(server.python), "-m", "pip", "install", *options, *arguments]


def _make_models(server: CpuServer, progress: Progress) -> None:
    """Write the models beside their place and move them there whole."""
    half_made = server.models.with_suffix(".part")
    shutil.rmtree(half_made, ignore_errors=True)
    command = [str(server.python), str(HERE / "make_models.py"), str(half_made)]
    _step(progress, 5, "the models tiny-qwen3 and tiny-eagle3", command)
    half_made.rename(server.models)


def _step(progress: Progress, number: int, what: str, command: list[str], env: dict[str, str] | None = None) -> None:
    """Run one command to its end, saying what it does and how long it took; its last line goes into the error."""
    progress(f"CPU server {number}/5: {what} …")
    started = time.monotonic()
    environment = _clean_env() | (env or {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, close_fds=False)
    if done.returncode != 0:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        reason = next((line for line in said if line.startswith("ERROR")), said[-1] if said else "no output")
        raise UnusableInput(f"the CPU server's environment, step {number}/5 ({what}): {reason}; mend it and run again")
    progress(f"CPU server {number}/5: done in {time.monotonic() - started:.0f} s")


def _clean_env() -> dict[str, str]:
    """Return the caller's environment without what would point this Python at other packages."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
