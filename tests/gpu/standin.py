"""A machine with stand-in cards: its state file, the processes that run on it, and waiting for what they do."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


class Standin:
    """One machine: its state file, and commands run on it. See nvml_standin.c for the keys."""

    def __init__(self, folder: Path, library: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.file = folder / "nvml.txt"
        self.file.touch()
        self.state = folder / "state"
        self.environment = {**os.environ, "NVML_STANDIN": str(self.file), "LD_LIBRARY_PATH": str(library)}
        self.started: list[subprocess.Popen[str]] = []

    def set(self, **keys: object) -> None:
        """`card0_lock=900` is key `0.lock`; a key without a card is the machine's."""
        state = self.read()
        for key, value in keys.items():
            card, _, field = key.removeprefix("card").partition("_")
            state[f"{card}.{field}" if key.startswith("card") else key] = str(value)
        scratch = self.file.with_suffix(".new")
        scratch.write_text("".join(f"{key}={value}\n" for key, value in state.items()))
        scratch.replace(self.file)

    def read(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.file.read_text().splitlines())

    def locked(self, card: int = 0) -> int:
        return int(self.read().get(f"{card}.lock", "0"))

    def start(self, *command: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, str(HERE / "speak.py"), *command],
            env=self.environment, cwd=HERE, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def ask(self, *command: str) -> Any:
        """Runs one command to its end and returns what it answered."""
        (answer,) = self._answers(*command)
        return answer

    def ask_each(self, *orders: "tuple[Standin, list[str]]") -> list[Any]:
        """Runs commands, each on a machine of its own, in one process that finds this machine's library."""
        return self._answers("each", json.dumps([[str(machine.file), command] for machine, command in orders]))

    def _answers(self, *command: str) -> list[Any]:
        process = self.start(*command)
        assert process.stdin is not None and process.stdout is not None
        out = process.stdout.read()  # stdin stays open: a closed one is a word to stop
        assert process.wait() == 0, out
        process.communicate()
        return [json.loads(line) for line in out.splitlines()]

    def hold(self, *arguments: str) -> "tuple[subprocess.Popen[str], dict[str, Any]]":
        """A process that holds the lock, and the record that it got."""
        process = self.start("hold", str(self.state), *arguments)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    def end(self) -> None:
        """Ends what was started; a guard ends by itself when its parent goes."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def marker(self) -> dict[str, Any]:
        (path,) = self.state.glob("lock-*.json")
        return dict(json.loads(path.read_text()))


def wait_until(condition: Callable[[], bool], what: str) -> float:
    """Seconds until it came true; fails with `what` after half a minute."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > 30:
            pytest.fail(f"did not happen: {what}")
        time.sleep(0.02)
    return time.monotonic() - began
