"""Counting tokens: the same record however the bytes are cut, whatever the text says."""

import asyncio
import hashlib
import json
import socket
from pathlib import Path

import pytest
from bad_server import DONE, HEAD, answer, chunked, frame, http_chunk
from chat_stream import CHAT
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.client.chat import ChatStream
from kit.client.connection import Backlog, Connection, Exchange
from kit.client.generate import GenerateStream
from kit.client.record import request_record
from kit.client.stream import EventStream, StreamBroken
from kit.measurements import RequestRecord

CAPTURES = sorted((Path(__file__).parent / "streams").glob("*.txt"))
TEXTS = st.text(alphabet=st.sampled_from('ab"\\:,{}[]\n é猫\u2028\x00') | st.characters(codec="utf-8"), max_size=40) | (
    st.sampled_from(['"completion_tokens":77', '\\"completion_tokens\\":5', "data: [DONE]\n\n", "\n\ndata: {}"])
)


def frames_of(path: Path) -> list[bytes]:
    """The frames of a captured reply."""
    body = path.read_bytes().replace(b"\r\n", b"\n")
    return [part + b"\n\n" for part in body[body.index(b"data: ") :].strip().split(b"\n\n")]


class _Transport(asyncio.Transport):
    """Closing is all that a connection asks of it here."""

    def abort(self) -> None:
        pass


def received(reads: list[bytes], stream: EventStream) -> RequestRecord:
    """The record of one exchange whose reply came in these reads, over a connection's own code."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ended: list[Exchange] = []
        backlog = Backlog()
        connection = Connection(ours, backlog, lambda _, exchange: ended.append(exchange))
        connection.connection_made(_Transport())
        connection.send(Exchange(0, b"POST", stream))
        for data in reads:
            connection.data_received(data)
        backlog.clear()
        assert len(ended) == 1
        return request_record(ended[0], 0.0, warmup=False)


def untimed(record: RequestRecord) -> tuple[object, ...]:
    """All of a record but its times."""
    counts = [tokens for _, tokens in record.chunks]
    return (counts, len(record.uncounted_s), record.prompt_tokens, record.completion_tokens, record.cached_tokens,
            record.retractions, record.spec, record.finish_reason, record.output_sha256, record.error)  # fmt: skip


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """`data` in reads, cut at the places; equal places make no empty read."""
    edges = sorted({0, len(data), *(place % len(data) for place in places)})
    return [data[a:b] for a, b in zip(edges, edges[1:], strict=False)]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_captured_streams_count_what_the_server_counted(path: Path) -> None:
    record = received([HEAD, chunked([*frames_of(path)])], GenerateStream())
    assert record.error is None
    assert sum(tokens for _, tokens in record.chunks) == record.completion_tokens
    last = json.loads(frames_of(path)[-2][6:])
    assert record.spec is None or record.spec.verify_steps == last["meta_info"]["spec_verify_ct"]
    assert record.output_sha256 == hashlib.sha256(",".join(map(str, last["output_ids"])).encode()).hexdigest()


CUTS = st.lists(st.integers(0, 1 << 20), max_size=40)


@given(path=st.sampled_from(CAPTURES), http_cuts=CUTS, read_cuts=CUTS)
@settings(max_examples=150, deadline=None)
def test_cutting_and_merging_changes_no_record(path: Path, http_cuts: list[int], read_cuts: list[int]) -> None:
    frames = frames_of(path)
    whole = received([HEAD, *map(http_chunk, frames), b"0\r\n\r\n"], GenerateStream())
    reply = HEAD + chunked(cut(b"".join(frames), http_cuts))
    assert untimed(received(cut(reply, read_cuts), GenerateStream())) == untimed(whole)


@given(http_cuts=CUTS, read_cuts=CUTS)
@settings(max_examples=150, deadline=None)
def test_cutting_and_merging_changes_no_chat_record(http_cuts: list[int], read_cuts: list[int]) -> None:
    whole = received([HEAD, *map(http_chunk, CHAT), b"0\r\n\r\n"], ChatStream())
    reply = HEAD + chunked(cut(b"".join(CHAT), http_cuts))
    assert untimed(received(cut(reply, read_cuts), ChatStream())) == untimed(whole)


@given(texts=st.lists(TEXTS, min_size=1, max_size=8), steps=st.lists(st.integers(1, 9), min_size=8, max_size=8))
@settings(max_examples=200, deadline=None)
def test_no_text_can_forge_a_count(texts: list[str], steps: list[int]) -> None:
    total, frames = 0, []
    for n, step in enumerate(steps[: len(texts)]):
        total += step
        frames.append(frame(total, "".join(texts[: n + 1]), "length" if n == len(texts) - 1 else None))
    record = received([HEAD, chunked([*frames, DONE])], GenerateStream())
    assert record.error is None
    assert [tokens for _, tokens in record.chunks] == steps[: len(texts)]
    assert record.completion_tokens == total


def test_frames_of_one_read_share_its_stamp() -> None:
    stream = GenerateStream()
    stream.feed(b"".join(answer()), 4.0)
    assert stream.chunks == [(4.0, 1), (4.0, 2), (4.0, 2), (4.0, 1)]
    assert stream.done_at == 4.0


def test_a_frame_belongs_to_the_read_that_completed_it() -> None:
    stream, one = GenerateStream(), answer()[0]
    stream.feed(one[:50], 1.0)
    stream.feed(one[50:], 2.0)
    assert stream.chunks == [(2.0, 1)]


def test_a_count_that_comes_before_the_text_is_found() -> None:
    stream = GenerateStream()
    stream.feed(b'data: {"meta_info": {"completion_tokens": 3, "finish_reason": null}, "text": "abc"}\n\n', 1.0)
    assert stream.chunks == [(1.0, 3)]
    assert stream.first_text_at == 1.0


def test_case_37_counters_that_a_version_lacks_stay_unknown() -> None:
    record = received([HEAD, chunked([frame(2, "ab", "stop"), DONE])], GenerateStream())
    assert record.spec is None
    assert record.server_e2e_s is None


@pytest.mark.parametrize(
    ("names", "correct", "proposed"),
    [
        ({"spec_accept_token_num": 5, "spec_draft_token_num": 9}, 5, 9),
        ({"spec_accepted_drafts": 5, "spec_proposed_drafts": 9}, 5, 9),
        ({"spec_num_correct_drafts": 6, "spec_accepted_drafts": 5, "spec_num_proposed_drafts": 9}, 6, 9),
        ({}, None, None),
    ],
)
def test_case_38_counters_are_read_by_every_versions_name(
    names: dict[str, int], correct: int | None, proposed: int | None
) -> None:
    reply = chunked([frame(4, "abcd", "length", spec_verify_ct=2, **names), DONE])
    spec = received([HEAD, reply], GenerateStream()).spec
    assert spec is not None
    assert (spec.verify_steps, spec.correct_drafts, spec.proposed_drafts) == (2, correct, proposed)


def test_retractions_of_older_versions_are_read() -> None:
    body = json.loads(frame(1, "a", "length")[6:])
    body["meta_info"] = {**body["meta_info"], "total_retractions": 2}
    del body["meta_info"]["num_retractions"]
    reply = chunked([b"data: " + json.dumps(body).encode() + b"\n\n", DONE])
    assert received([HEAD, reply], GenerateStream()).retractions == 2


def test_an_endless_frame_is_given_up() -> None:
    stream = GenerateStream()
    with pytest.raises(StreamBroken, match="more than 64 MiB"):
        for _ in range(65):
            stream.feed(b"x" * (1 << 20), 1.0)
