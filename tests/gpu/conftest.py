"""The stand-in NVIDIA library, compiled once, and a process that talks to it through the true pynvml."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin import Standin

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders that hold libnvidia-ml.so.1: of a new driver and of an old one."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NO C COMPILER (cc): the GPU code is NOT tested here, its stand-in library cannot be compiled")
    folders = {}
    for name, flags in {"new": [], "old": ["-DOLD_DRIVER"]}.items():
        folders[name] = tmp_path_factory.mktemp(f"nvml-{name}")
        target = folders[name] / "libnvidia-ml.so.1"
        source = HERE / "nvml_standin.c"
        subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", target, source], check=True)
    return folders


@pytest.fixture
def standin(tmp_path: Path, libraries: dict[str, Path]) -> Iterator[Standin]:
    machine = Standin(tmp_path, libraries["new"])
    yield machine
    machine.end()


@pytest.fixture
def old_standin(tmp_path: Path, libraries: dict[str, Path]) -> Iterator[Standin]:
    machine = Standin(tmp_path, libraries["old"])
    yield machine
    machine.end()
