"""The direction of imports: recording and reading meet only on disk, and each outside library has one home."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECORDING = (
    "adaptive",
    "engine",
    "sglang",
    "client",
    "gpu",
    "gpu_guard",
    "run",
    "run_folder",
    "workload",
    "setup",
    "rehearsal",
    "fetch",
    "image",
    "build",
    "like",
)
READING = (
    "measurements",
    "analysis",
    "verdict",
    "claims",
    "forecast",
    "charts",
    "figures",
    "tables",
    "page",
    "report",
    "publish",
)
HOMES = {
    "docker": {"kit/engine/docker.py"},
    "pynvml": {"kit/gpu.py"},
    "invoke": {"tasks.py"},
    "jinja2": {"kit/report.py", "kit/workload/chat.py"},
    "httptools": {"kit/client"},
    "uvloop": {"kit/client"},
    "rich": {"kit/progress.py"},
    "matplotlib": {"kit/charts.py"},
    "markdown_it": {"kit/page.py"},
    "huggingface_hub": {"kit/fetch.py"},
    "tokenizers": {"kit/workload/tokens.py", "kit/rehearsal"},
}
PURE = ("errors", "scenario", "plan")
STANDINS = "kit/rehearsal/standins"


def sources() -> list[Path]:
    paths = [ROOT / "tasks.py", *(ROOT / "kit").rglob("*.py")]
    return [p for p in paths if STANDINS not in p.as_posix()]


@cache
def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def part(path: Path) -> str:
    """The first name below kit/: a module or a package."""
    return path.relative_to(ROOT / "kit").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_outside_libraries_have_one_home(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    for name in imports(path):
        home = HOMES.get(name.partition(".")[0])
        assert home is None or any(place == h or place.startswith(f"{h}/") for h in home), f"{place} imports {name}"


def reading_sources() -> list[Path]:
    return [p for p in sources() if p.name != "tasks.py" and part(p) in (*READING, *PURE)]


@pytest.mark.parametrize("path", reading_sources(), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_reading_half_does_not_know_the_recording_half(path: Path) -> None:
    parts = {name.split(".")[1] for name in imports(path) if name.startswith("kit.")}
    assert not parts & set(RECORDING), f"{path.name} imports {parts & set(RECORDING)}"


def test_what_the_test_names_exists() -> None:
    """A renamed module must not slip out of the lists above."""
    for name in (*READING, "engine", "sglang", "client", "gpu", "run", "workload"):
        assert (ROOT / "kit" / name).exists() or (ROOT / "kit" / f"{name}.py").exists(), name


def test_a_turned_arrow_is_found(tmp_path: Path) -> None:
    """The reader of imports sees what it must see."""
    file = tmp_path / "x.py"
    file.write_text("from kit import run\ndef f():\n    import docker.errors\n")
    assert {"kit.run", "docker.errors"} <= imports(file)
