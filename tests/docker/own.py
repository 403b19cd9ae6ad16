"""A Docker daemon of the tests' own, which they may stop and start."""

import socket
import subprocess
import time
from pathlib import Path


class Daemon:
    """A dockerd below a folder, with networks and mounts of its own: the machine's own daemon notices nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.address = f"unix://{folder}/docker.sock"

    def start(self) -> None:
        place = self._folder
        command = [
            "unshare", "--net", "--mount", "dockerd", f"--host={self.address}", f"--data-root={place}/data",
            f"--exec-root={place}/exec", f"--pidfile={place}/pid",
        ]  # fmt: skip
        with (place / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        for _ in range(300):
            if self._answers():
                return
            time.sleep(0.1)
        raise AssertionError((place / "dockerd.log").read_text()[-2000:])

    def stop(self) -> None:
        """Stops it as a service manager does."""
        self._process.terminate()
        self._process.wait(timeout=60)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            return line.connect_ex(self.address.removeprefix("unix://")) == 0
