"""Whatever a server does, a request becomes one record, the next request goes on, and the drive ends."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from bad_server import WAYS, bad_server
from driving import Drive, drive_all

from kit.measurements import DriveEnd, RequestRecord

RULES = {"request_timeout_s": 0.6, "silence_timeout_s": 0.25}
FAILURES = {
    "silence": ("silence", "nothing came for 0.25 s", 200),
    "no_answer": ("silence", "nothing came", None),
    "never_ends": ("timeout", "not done after 0.6 s", 200),
    "reset": ("reset", "in mid-stream", 200),
    "closed": ("closed", "in mid-stream", 200),
    "closed_at_once": ("closed", "before any answer", None),
    "truncated_json": ("bad_frame", "truncated JSON", 200),
    "invalid_json_at_the_end": ("bad_frame", "JSON is malformed", 200),
    "ends_within_a_frame": ("truncated", "within a frame", 200),
    "ends_early": ("truncated", "without a finish reason", 200),
    "error_frame": ("server_error", "out of memory", 200),
    "abort": ("abort", "too many requests", 200),
    "no_token": ("no_tokens", "holds no token; finish reason stop", 200),
    "not_a_stream": ("no_tokens", "no frame with a token count", 200),
    "too_many_requests": ("http_status", '{"error": "slow\\ndown"}', 429),
    "unavailable": ("http_status", "try later", 503),
    "internal_error_and_close": ("http_status", "sorry", 500),
    "compressed": ("encoding", "gzip", 200),
    "no_http": ("bad_http", "SSH", None),
}
FINE = (
    "byte_by_byte", "utf8_cut", "keep_alive_comments", "done_but_open", "ends_with_connection", "good_then_close",
    "continue_first",
)  # fmt: skip


def driven(ways: Iterable[str], folder: Path, **rules: float) -> tuple[dict[str, list[RequestRecord]], DriveEnd]:
    """Each way between two good answers, all in one drive: the records of the three by the way, and how it ended."""
    with bad_server() as server:
        prompts = ["good", *(prompt for way in ways for prompt in (way, "good"))]
        records, end = drive_all(server, folder, prompts, **rules)
    return {way: records[2 * n : 2 * n + 3] for n, way in enumerate(ways)}, end


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[RequestRecord]], DriveEnd]:
    return driven(FAILURES, tmp_path_factory.mktemp("failed"), **RULES)


@pytest.fixture(scope="module")
def fine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[RequestRecord]]:
    return driven(FINE, tmp_path_factory.mktemp("fine"), request_timeout_s=5.0, silence_timeout_s=5.0)[0]


def test_every_way_of_the_server_is_judged() -> None:
    assert set(FAILURES) | set(FINE) | {"good", "slow"} == set(WAYS)


@pytest.mark.parametrize("way", FAILURES)
def test_a_failure_is_a_record_and_the_drive_goes_on(
    failed: tuple[dict[str, list[RequestRecord]], DriveEnd], way: str
) -> None:
    records, end = failed[0][way], failed[1]
    kind, detail, status = FAILURES[way]
    error = records[1].error
    assert error is not None
    assert (error.kind, error.status) == (kind, status)
    assert detail in error.detail
    assert "\n" not in error.detail
    assert records[1].completion_tokens is None
    assert [record.error for record in (records[0], records[2])] == [None, None]
    assert end.aborted is None


@pytest.mark.parametrize("way", FINE)
def test_an_odd_but_whole_answer_is_good(fine: dict[str, list[RequestRecord]], way: str) -> None:
    records = fine[way]
    assert [record.error for record in records] == [None] * 3
    assert len({record.output_sha256 for record in records}) == 1
    assert [[tokens for _, tokens in record.chunks] for record in records] == [[1, 2, 2, 1]] * 3


def test_chunks_before_a_failure_are_kept(failed: tuple[dict[str, list[RequestRecord]], DriveEnd]) -> None:
    record = failed[0]["reset"][1]
    assert [tokens for _, tokens in record.chunks] == [1]
    assert record.done_s is None


def test_failures_under_concurrency_do_not_eat_slots(drive: Drive) -> None:
    records, end = drive(["reset", "good", "closed", "too_many_requests"] * 10, concurrency=4)
    assert [record.index for record in records] == list(range(40))
    assert sum(record.error is None for record in records) == 10
    assert end.watch.chunks == 10 * 4 + 20


def test_case_53_a_server_that_is_not_there_fails_every_request(drive: Drive) -> None:
    records, end = drive(["good"] * 5, host="127.0.0.2")
    assert [record.error and record.error.kind for record in records] == ["connect"] * 5
    assert [record.sent_s for record in records] == [None] * 5
    assert end.watch.chunks == 0
