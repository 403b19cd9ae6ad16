"""Headless Chromium for tests: opens a page, keeps what its console said and what it asked for. Knows no report.

Speaks the DevTools protocol over two pipes, with the standard library alone: JSON messages that end in a zero byte.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip
LIMIT_S = 60.0
BRIDGE = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'  # Chromium reads from 3 and writes to 4, whatever our numbers are


def find() -> str | None:
    """The path of a Chromium, None when there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. `events` keeps what it said, as (method, parameters)."""

    def __init__(self, commands: int, answers: int) -> None:
        self.events: list[tuple[str, Any]] = []
        self._commands, self._answers, self._rest, self._number = commands, answers, b"", 0
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Goes there and returns when the page and all that it loads is there."""
        self.events.clear()
        failed = self.ask("Page.navigate", url=url).get("errorText")
        assert not failed, f"{url}: {failed}"
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            self._read()

    def evaluate(self, script: str) -> Any:
        """The script's value; the page itself needs no script for it."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def requests(self) -> list[str]:
        """The URLs that the page asked for, its own first."""
        return [p["request"]["url"] for method, p in self.events if method == "Network.requestWillBeSent"]

    def complaints(self) -> list[Any]:
        """Whatever stands in the console, and exceptions."""
        said = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [p for method, p in self.events if method in said]

    def picture(self, path: Path, width: int, media: str = "screen", height: int | None = None) -> None:
        """A PNG of the page at a width in CSS pixels: all of it, or its first `height`."""
        self.ask("Emulation.setEmulatedMedia", media=media)
        size = {"width": width, "height": height or 900, "deviceScaleFactor": 1, "mobile": False}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        png = self.ask("Page.captureScreenshot", captureBeyondViewport=height is None)["data"]
        path.write_bytes(base64.b64decode(png))

    def ask(self, method: str, **parameters: Any) -> Any:
        """Sends a command and waits for its answer; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def _read(self) -> Any:
        end = time.monotonic() + LIMIT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(end - time.monotonic(), 0))
            assert ready, f"Chromium says nothing for {LIMIT_S:.0f} s"
            part = os.read(self._answers, 1 << 20)
            assert part, "Chromium ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message


@contextmanager
def page(chromium: str, profile: Path) -> Iterator[Page]:
    """A tab of a Chromium of its own, with a fresh profile; it ends with the block."""
    (in_reads, commands), (answers, out_writes) = os.pipe(), os.pipe()
    theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (in_reads, out_writes)]  # off 3 and 4, which the bridge sets
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(
        ["bash", "-c", BRIDGE, "bridge", *map(str, theirs), *command], pass_fds=theirs, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for fd in (in_reads, out_writes, *theirs):
        os.close(fd)
    try:
        yield Page(commands, answers)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(commands)
        os.close(answers)
