"""Fetching over real sockets: a server of files that can break off, and a hub of one model, both on the loopback."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kit import fetch
from kit.errors import RunFailed, UnusableInput
from kit.scenario import Model
from kit.workload.pins import UNVERIFIED, Pin

ROOT = Path(__file__).parents[2]
DATA = bytes(range(256)) * 4096
COMMIT = "c0ffee" + "0" * 34
FILES = {"config.json": b'{"a": 1}', "model.safetensors": DATA, "logo.png": b"x"}
TOKEN = "hf_secret-of-the-test"


class Server(ThreadingHTTPServer):
    """`ranges` holds the Range headers seen; the next answer breaks off after `break_after` bytes when it is set."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ranges: list[str | None] = []
        self.tokens: set[str | None] = set()
        self.break_after: int | None = None
        self.gated = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.tokens.add(self.headers["Authorization"])
        if path.startswith("/api/models/") and self.server.gated:
            self.refuse(401, "GatedRepo")
        elif "/tree/" in path:
            self.answer(
                json.dumps(
                    [{"type": "file", "oid": _etag(d), "size": len(d), "path": n} for n, d in FILES.items()]
                ).encode()
            )
        elif path.startswith("/api/models/owner/name"):
            if path.rpartition("/revision/")[2] not in (COMMIT, path):
                return self.refuse(404, "RevisionNotFound")
            siblings = [{"rfilename": n, "size": len(d)} for n, d in FILES.items()]
            self.answer(json.dumps({"id": "owner/name", "sha": COMMIT, "siblings": siblings}).encode())
        elif path.startswith("/api/models/"):
            self.refuse(404, "RepoNotFound")
        else:
            self.send_file(FILES.get(path.rpartition("/")[2], DATA))
        return None

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_file(self, data: bytes) -> None:
        wanted = self.headers["Range"]
        if self.command == "GET":
            self.server.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        if start >= len(data):
            return self.refuse(416, "range")
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", f'"{_etag(data)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            end, self.server.break_after = self.server.break_after, None
            self.wfile.write(data[start:end])
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))  # how often it looks for the shutdown
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def pin(server: Server, sha256: str = _etag(DATA), revision: str = "r1") -> Pin:
    return Pin(
        file="d/data.bin", url=server.url + "/{revision}/data.bin", revision=revision, sha256=sha256,
        licence="x", citation="x", provenance="x",
    )  # fmt: skip


def fetch_pin(what: Pin, folder: Path) -> list[str]:
    said: list[str] = []
    fetch.fetch_file(what, folder / "datasets", folder / "pins.json", said.append)
    return said


def test_a_file_is_fetched_once_and_held_against_its_hash(server: Server, tmp_path: Path) -> None:
    fetch_pin(pin(server), tmp_path)
    assert (tmp_path / "datasets/d/data.bin").read_bytes() == DATA
    assert fetch_pin(pin(server), tmp_path) == ["d/data.bin: here already"] and len(server.ranges) == 1


def test_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.break_after = 300_000
    with pytest.raises(RunFailed, match="goes on where it stopped"):
        fetch_pin(pin(server), tmp_path)
    assert not (tmp_path / "datasets/d/data.bin").exists()
    fetch_pin(pin(server), tmp_path)
    assert server.ranges == [None, "bytes=300000-"]
    assert (tmp_path / "datasets/d/data.bin").read_bytes() == DATA


def test_a_part_that_is_whole_already_is_fetched_anew_when_the_server_cannot_go_on(
    server: Server, tmp_path: Path
) -> None:
    part = tmp_path / "datasets/d/data.bin.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA)
    fetch_pin(pin(server), tmp_path)
    assert (tmp_path / "datasets/d/data.bin").read_bytes() == DATA and not part.exists()


def test_a_file_with_another_hash_is_not_kept(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="it was not kept"):
        fetch_pin(pin(server, sha256="0" * 64), tmp_path)
    assert not list((tmp_path / "datasets/d").iterdir())


def test_what_nobody_verified_is_said_and_noted(server: Server, tmp_path: Path) -> None:
    said = fetch_pin(pin(server, sha256=UNVERIFIED, revision=UNVERIFIED), tmp_path)
    assert "not verified by the authors" in said[-1]
    assert fetch.read_pins(tmp_path / "pins.json").datasets == {"d/data.bin": _etag(DATA)}


def test_a_server_that_refuses_or_is_not_there_is_one_line(server: Server, tmp_path: Path) -> None:
    gone = pin(server)
    server.shutdown()
    server.server_close()
    with pytest.raises(RunFailed, match="d/data.bin: http://127") as caught:
        fetch_pin(gone, tmp_path)
    assert "\n" not in str(caught.value)


def fetch_model(
    server: Server, folder: Path, revision: str, path: str = "owner/name"
) -> "subprocess.CompletedProcess[str]":
    """In a process of its own: the hub library reads its endpoint when it is imported."""
    program = f"""
import sys
from pathlib import Path
from kit.errors import KitError
from kit.fetch import fetch_model
from kit.scenario import Model
try:
    fetch_model(Model(path={path!r}, revision={revision!r}), Path({str(folder / "models")!r}), print)
except KitError as error:
    sys.exit(f"{{error.exit_code}} {{error}}")
"""
    env = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_TOKEN": TOKEN,
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }
    env.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_a_model_is_fetched_whole_by_its_revision_and_its_token_written_nowhere(server: Server, tmp_path: Path) -> None:
    ended = fetch_model(server, tmp_path, COMMIT)
    assert ended.returncode == 0, ended.stderr
    place = tmp_path / "models" / f"owner--name@{COMMIT}"
    assert sorted(p.name for p in place.iterdir()) == ["config.json", "model.safetensors"]
    assert (place / "model.safetensors").read_bytes() == DATA
    assert fetch.read_pins(tmp_path / "pins.json").models == {"owner/name": COMMIT}
    assert f"Bearer {TOKEN}" in server.tokens
    written = [p for p in tmp_path.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()]
    assert written == [] and TOKEN not in ended.stdout + ended.stderr
    assert "here already" in fetch_model(server, tmp_path, COMMIT).stdout


def test_an_unverified_revision_says_what_it_saw(server: Server, tmp_path: Path) -> None:
    ended = fetch_model(server, tmp_path, UNVERIFIED)
    assert ended.returncode == 0 and f"pins no verified revision; seen {COMMIT}" in ended.stdout
    assert (tmp_path / "models/owner--name@unverified/config.json").exists()


def test_a_broken_model_download_leaves_no_model_and_goes_on(server: Server, tmp_path: Path) -> None:
    server.break_after = 4
    fetch_model(server, tmp_path, COMMIT)
    ended = fetch_model(server, tmp_path, COMMIT)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / f"models/owner--name@{COMMIT}/model.safetensors").read_bytes() == DATA


@pytest.mark.parametrize(
    ("path", "revision", "gated", "text"),
    [
        ("owner/name", "f" * 40, False, "has no revision"),
        ("owner/other", "f" * 40, False, "no such model, or a private one that needs HF_TOKEN"),
        ("owner/name", COMMIT, True, "gated; accept its terms"),
    ],
)
def test_what_the_hub_refuses_is_one_line(
    server: Server, tmp_path: Path, path: str, revision: str, gated: bool, text: str
) -> None:
    server.gated = gated
    ended = fetch_model(server, tmp_path, revision, path)
    assert ended.stderr.startswith("2 ") and text in ended.stderr and ended.stderr.count("\n") == 1


def test_a_folder_of_the_readers_own_is_left_alone(tmp_path: Path) -> None:
    said: list[str] = []
    fetch.fetch_model(Model(path="tiny"), tmp_path, said.append)
    assert said == ["tiny: a folder of your own, nothing to fetch"] and not list(tmp_path.iterdir())
