"""The API's answers, through an endpoint that says what a test wrote down."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.client.job import DriveJob
from kit.engine import Reply
from kit.errors import RunFailed, ServerFailed
from kit.measurements import ServerFacts
from kit.sglang import api


class Scripted:
    """An endpoint that gives its replies in order and notes what was asked."""

    def __init__(self, *replies: Reply, code: int | None = None) -> None:
        self.replies = list(replies)
        self.asked: list[tuple[str, str]] = []
        self.code = code

    def call(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 30.0) -> Reply:
        self.asked.append((method, path))
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def drive(self, job: DriveJob) -> Iterator[bytes]:
        return iter(())

    def exit_code(self) -> int | None:
        return self.code


def test_server_info_falls_back_to_the_older_path() -> None:
    endpoint = Scripted(Reply(404, b"{}"), Reply(200, json.dumps({"version": "0.5.3"}).encode()))
    assert api.server_info(endpoint) == {"version": "0.5.3"}
    assert endpoint.asked == [("GET", "/server_info"), ("GET", "/get_server_info")]


@pytest.mark.parametrize("reply", [Reply(500, b"boom"), Reply(0, b"refused"), Reply(200, b"<html>"), Reply(200, b"[]")])
def test_server_info_that_is_none_ends_the_run(reply: Reply) -> None:
    with pytest.raises(RunFailed, match="/server_info"):
        api.server_info(Scripted(reply))


def test_the_info_of_another_server_ends_the_run() -> None:
    endpoint = Scripted(Reply(200, b'{"served_model_name": "theirs"}'))
    with pytest.raises(RunFailed, match=r"another server answers on port 30000.*server\.port=30001"):
        api.own_info(endpoint, "ours", 30000, Path("server.log"))
    assert api.own_info(endpoint, "theirs", 30000, Path("server.log"))


def test_a_server_that_has_ended_is_not_asked() -> None:
    endpoint = Scripted(Reply(200, b'{"served_model_name": "ours"}'), code=1)
    with pytest.raises(ServerFailed, match="ended with code 1"):
        api.own_info(endpoint, "ours", 30000, Path("nosuch.log"))
    assert not endpoint.asked


@pytest.mark.parametrize(
    ("asked", "runs"), [(None, None), ("EAGLE3", "EAGLE3"), ("eagle3", "EAGLE3"), ("NEXTN", "EAGLE")]
)
def test_an_algorithm_as_asked_or_by_its_other_name_is_right(asked: str | None, runs: str | None) -> None:
    api.check_algorithm(asked, ServerFacts(algorithm=runs))


@pytest.mark.parametrize(("asked", "runs"), [(None, "EAGLE3"), ("EAGLE3", None), ("EAGLE3", "NGRAM"), ("NGRAM", "x")])
def test_another_algorithm_than_the_one_asked_for_ends_the_run(asked: str | None, runs: str | None) -> None:
    with pytest.raises(
        RunFailed, match=f"runs speculative-algorithm {runs or 'none'}, asked for was {asked or 'none'}"
    ):
        api.check_algorithm(asked, ServerFacts(algorithm=runs))


def test_flush_needs_a_200_and_asks_again_until_it_has_one() -> None:
    busy = Reply(400, b"Flush cache failed.")
    endpoint = Scripted(busy, busy, Reply(200, b"ok"))
    flush = api.flush(endpoint, pause_s=0)
    assert (flush.tries, flush.status) == (3, 200)
    assert endpoint.asked[0] == ("POST", "/flush_cache?timeout=30")


def test_a_flush_that_never_succeeds_ends_the_run() -> None:
    endpoint = Scripted(Reply(400, b"pending requests"))
    with pytest.raises(RunFailed, match="400 on 4 tries: pending requests"):
        api.flush(endpoint, tries=4, pause_s=0)
    assert len(endpoint.asked) == 4


def test_a_flush_stops_when_the_server_is_gone() -> None:
    endpoint = Scripted(Reply(0, b"refused"), code=1)
    with pytest.raises(RunFailed, match="ended with code 1"):
        api.flush(endpoint, pause_s=0)
    assert len(endpoint.asked) == 1
