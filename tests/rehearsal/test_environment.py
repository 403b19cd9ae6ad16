"""Making the environment: what is locked, what a lack is called, and that a half-made one is never used."""

import fcntl
import re
import shutil
import threading
from pathlib import Path

import pytest

from kit.errors import UnusableInput
from kit.rehearsal.environment import (
    HERE,
    LOCK,
    MARKER,
    MODEL_SOURCES,
    STANDINS,
    _digest,
    check_tools,
    ensure_environment,
    environment_key,
)


def finished(cache: Path) -> Path:
    """An environment that claims to be complete."""
    root = cache / environment_key()
    (root / f"models-{_digest(MODEL_SOURCES)}").mkdir(parents=True)
    (root / MARKER).touch()
    return root


def nothing_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": ""}.items():
        monkeypatch.setenv(name, value)


def test_every_locked_package_has_hashes_and_no_address() -> None:
    text = LOCK.read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)
    assert "://" not in text and "index" not in text.lower().replace("--no-emit-index-url", "")
    names = {entry.partition("==")[0] for entry in entries}
    assert {"sglang", "transformers", "tokenizers"} <= names
    assert not {"torch", "triton"} & names


def test_no_file_of_the_rehearsal_names_a_place_of_this_machine() -> None:
    for file in HERE.rglob("*"):
        if file.is_file() and file.suffix != ".pyc":
            assert not re.search(r"/(root|home|opt|work)/|https?://", file.read_text()), file


def test_a_finished_environment_is_taken_without_a_word(tmp_path: Path) -> None:
    root = finished(tmp_path)
    said: list[str] = []
    server = ensure_environment(tmp_path, said.append)
    assert said == [] and server.python == root / "venv/bin/python" and server.models.parent == root
    assert server.env["PYTHONPATH"] == str(STANDINS) and server.env["PATH"].startswith(f"{root}/venv/bin:")
    assert server.flags["device"] == "cpu"


def test_a_missing_compiler_is_one_line_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    check_tools()
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UnusableInput, match=r"g\+\+.*apt-get install g\+\+$"):
        check_tools()


@pytest.mark.server
def test_a_half_made_one_is_thrown_away_and_a_failed_step_leaves_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_to_install(monkeypatch)
    root = finished(tmp_path)
    (root / MARKER).unlink()
    (root / "left").touch()
    said: list[str] = []
    with pytest.raises(UnusableInput, match=r"step 2/5 \(torch==.*\): ERROR: .*run again$") as failure:
        ensure_environment(tmp_path, said.append)
    assert "\n" not in str(failure.value)
    assert "half made" in said[0] and not (root / "left").exists() and not (root / MARKER).exists()


def test_a_second_run_waits_for_the_first_and_takes_what_it_made(tmp_path: Path) -> None:
    lock = tmp_path / f"{environment_key()}.lock"
    waiting, said, got = threading.Event(), [], []

    def say(line: str) -> None:
        said.append(line)
        waiting.set()

    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = threading.Thread(target=lambda: got.append(ensure_environment(tmp_path, say)))
        second.start()
        assert waiting.wait(10)
        finished(tmp_path)
    second.join(10)
    assert len(got) == 1 and len(said) == 1 and "waiting" in said[0]


def test_another_lock_is_another_environment(tmp_path: Path) -> None:
    copy = tmp_path / LOCK.name
    shutil.copy(LOCK, copy)
    assert _digest((copy,)) == _digest((LOCK,))
    copy.write_text(copy.read_text() + "\n")
    assert _digest((copy,)) != _digest((LOCK,))
