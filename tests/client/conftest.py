"""The client as a program of its own against a server on a real socket."""

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_server import BadServer, bad_server
from driving import Drive, drive_all


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad_server() as running:
        yield running


@pytest.fixture
def drive(server: BadServer, tmp_path: Path) -> Drive:
    return functools.partial(drive_all, server, tmp_path)
