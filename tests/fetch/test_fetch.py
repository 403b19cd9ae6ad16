"""Fetching over real sockets: a server of files that can break off, and a hub of one model, both on the loopback."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import msgspec
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
    """`asked` holds the files that were asked for, `ranges` the Range headers.

    The next answer breaks off after `break_after` bytes when it is set. Of models there is owner/name; owner/gated; and
    owner/broken, whose weights break off when they are first asked for and are refused when the hub library, by itself,
    asks for them again.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.ranges: list[str | None] = []
        self.tokens: set[str | None] = set()
        self.break_after: int | None = None
        self.troubles = [4, 403]

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
        if path.startswith("/api/models/owner/gated"):
            self.refuse(401, "GatedRepo")
        elif "/tree/" in path:
            self.answer(
                json.dumps(
                    [{"type": "file", "oid": _etag(d), "size": len(d), "path": n} for n, d in FILES.items()]
                ).encode()
            )
        elif path.startswith(("/api/models/owner/name", "/api/models/owner/broken")):
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
        end, self.server.break_after = self.server.break_after, None
        if self.command == "GET" and self.path.startswith("/owner/broken/") and self.path.endswith("safetensors"):
            end = self.server.troubles.pop(0) if self.server.troubles else None
        if end == 403:
            return self.refuse(403, "refused")
        wanted = self.headers["Range"]
        if self.command == "GET":
            self.server.asked.append(self.path)
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
            self.wfile.write(data[start:end])
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@contextmanager
def serving() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))  # how often it looks for the shutdown
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


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


# ---- models ---------------------------------------------------------------------------------------------------------


class Fetched(msgspec.Struct):
    """What came of one call: what it said, or the exit code and the line of its error."""

    said: list[str]
    error: str


class Case(NamedTuple):
    path: str
    revision: str
    folder: str


WHOLE = Case("owner/name", COMMIT, "whole")
BRANCH = Case("owner/name", UNVERIFIED, "branch")
BROKEN = Case("owner/broken", COMMIT, "broken")
REFUSED = {
    Case("owner/name", "f" * 40, "revision"): "has no revision",
    Case("owner/other", "f" * 40, "model"): "no such model, or a private one that needs HF_TOKEN",
    Case("owner/gated", COMMIT, "gated"): "gated; accept its terms",
}
CASES = (WHOLE, WHOLE, BRANCH, BROKEN, BROKEN, *REFUSED)


class Hub(NamedTuple):
    """All cases fetched: `answers` in their order by case, each in a folder of its own below `home`."""

    home: Path
    answers: dict[Case, list[Fetched]]
    printed: str
    tokens: set[str | None]
    asked: list[str]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    """In one process of its own: the hub library reads its endpoint when it is imported, which takes half a second."""
    home = tmp_path_factory.mktemp("hub")
    program = """
import json, sys
from pathlib import Path
from kit.errors import KitError
from kit.fetch import fetch_model
from kit.scenario import Model
home, cases = json.loads(sys.argv[1])
for path, revision, folder in cases:
    said, line = [], ""
    try:
        fetch_model(Model(path=path, revision=revision), Path(home, folder, "models"), said.append)
    except KitError as error:
        line = f"{error.exit_code} {error}"
    print(json.dumps({"said": said, "error": line}))
"""
    with serving() as server:
        env = {**os.environ, "HF_ENDPOINT": server.url, "HF_TOKEN": TOKEN, "HF_HOME": str(home / "hub's own"),
               "HF_HUB_DISABLE_XET": "1"}  # fmt: skip
        env.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-c", program, json.dumps([str(home), CASES])]
        ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    answers: dict[Case, list[Fetched]] = {}
    for case, line in zip(CASES, ended.stdout.splitlines(), strict=True):
        answers.setdefault(case, []).append(msgspec.json.decode(line, type=Fetched))
    return Hub(home, answers, ended.stdout + ended.stderr, server.tokens, server.asked)


def test_a_model_is_fetched_whole_by_its_revision_and_its_token_written_nowhere(hub: Hub) -> None:
    first, second = hub.answers[WHOLE]
    assert first.error == ""
    place = hub.home / "whole" / "models" / f"owner--name@{COMMIT}"
    assert sorted(p.name for p in place.iterdir()) == ["config.json", "model.safetensors"]
    assert (place / "model.safetensors").read_bytes() == DATA
    assert fetch.read_pins(hub.home / "whole" / "pins.json").models == {"owner/name": COMMIT}
    assert f"Bearer {TOKEN}" in hub.tokens
    written = [p for p in hub.home.rglob("*") if p.is_file() and TOKEN.encode() in p.read_bytes()]
    assert written == [] and TOKEN not in hub.printed
    assert second == Fetched([f"{place.name}: here already"], "")


def test_an_unverified_revision_says_what_it_saw(hub: Hub) -> None:
    (answer,) = hub.answers[BRANCH]
    assert answer.error == "" and f"pins no verified revision; seen {COMMIT}" in answer.said[-1]
    assert (hub.home / "branch/models/owner--name@unverified/config.json").exists()


def test_a_broken_model_download_leaves_no_model_and_goes_on(hub: Hub) -> None:
    broken, again = hub.answers[BROKEN]
    assert broken.error.startswith("1 owner/broken: ") and broken.error.endswith("goes on where it stopped")
    assert (again.error, again.said[0]) == ("", f"owner/broken at {COMMIT}: fetching")
    assert [place for place in hub.asked if "/broken/" in place and place.endswith(".json")] == [
        f"/owner/broken/resolve/{COMMIT}/config.json"
    ], "what was whole is not asked for again"
    assert (hub.home / f"broken/models/owner--broken@{COMMIT}/model.safetensors").read_bytes() == DATA


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.folder)
def test_what_the_hub_refuses_is_one_line(hub: Hub, case: Case) -> None:
    (answer,) = hub.answers[case]
    assert answer.error.startswith("2 ") and REFUSED[case] in answer.error and "\n" not in answer.error
    assert [p.suffix for p in (hub.home / case.folder / "models").iterdir()] == [".part"]


def test_a_folder_of_the_readers_own_is_left_alone(tmp_path: Path) -> None:
    said: list[str] = []
    fetch.fetch_model(Model(path="tiny"), tmp_path, said.append)
    assert said == ["tiny: a folder of your own, nothing to fetch"] and not list(tmp_path.iterdir())
