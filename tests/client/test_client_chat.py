"""OpenAI chat streams: which chunks count, and what is unknown when a gateway leaves usage out."""

from typing import Any, NamedTuple

import pytest
from bad_server import DONE, BadServer, bad_server, chunked
from chat_stream import CHAT, chat_frame
from driving import Drive, drive_all

from kit.measurements import DriveEnd, RequestRecord

ASKED: dict[str, Any] = {"dialect": "openai-chat", "model": "m"}
REPLIES = {
    "whole": CHAT,
    "role first": [
        chat_frame({"role": "assistant", "content": ""}, usage=1),
        chat_frame({"content": "x"}, usage=1),
        chat_frame({}, usage=1, finish="stop"),
        DONE,
    ],
    "reasoning": [
        chat_frame({"reasoning_content": "hm"}, usage=2),
        chat_frame({"reasoning": "hm"}, usage=3),
        chat_frame({}, usage=3, finish="length"),
        DONE,
    ],
    "tool call": [
        chat_frame({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}, usage=5),
        chat_frame({}, usage=5, finish="tool_calls"),
        DONE,
    ],
    "early end": [
        chat_frame({"content": "x"}, usage=1),
        chat_frame({}, usage=2, finish="stop"),
        chat_frame(None, usage=2),
        DONE,
    ],
    "no usage": [
        chat_frame({"role": "assistant"}),
        chat_frame({"content": "x"}),
        chat_frame({"content": "y"}, finish="stop"),
    ],
    "usage at the end": [
        chat_frame({"content": "x"}),
        chat_frame({"content": "y"}),
        chat_frame({}, finish="stop"),
        chat_frame(None, usage=5),
        DONE,
    ],
}


class Driven(NamedTuple):
    records: dict[str, RequestRecord]
    end: DriveEnd
    asked: list[dict[str, Any]]


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Driven:
    """Each reply once, all in one drive."""
    with bad_server() as server:
        server.replies = {name: chunked(frames) for name, frames in REPLIES.items()}
        records, end = drive_all(server, tmp_path_factory.mktemp("chats"), list(REPLIES), **ASKED)
    assert [record.error for record in records] == [None] * len(REPLIES)
    return Driven(dict(zip(REPLIES, records, strict=True)), end, server.seen)


def counts(record: RequestRecord) -> list[int]:
    return [tokens for _, tokens in record.chunks]


def test_a_chat_record(chats: Driven) -> None:
    record = chats.records["whole"]
    assert counts(record) == [2, 4, 1, 2]
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (9, 9, 4)
    assert (record.reasoning_tokens, record.finish_reason, record.uncounted_s) == (2, "stop", [])
    assert chats.asked[0] == {
        "model": "m", "messages": [{"role": "user", "content": "whole"}], "temperature": 0.0, "ignore_eos": True,
        "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip


def test_case_17_role_only_chunk_is_no_first_token(chats: Driven) -> None:
    assert counts(chats.records["role first"]) == [1]


def test_case_18_reasoning_is_output(chats: Driven) -> None:
    assert counts(chats.records["reasoning"]) == [2, 1]


def test_tool_calls_are_output(chats: Driven) -> None:
    assert counts(chats.records["tool call"]) == [5]


def test_case_11_an_early_end_counts_what_came(chats: Driven) -> None:
    assert counts(chats.records["early end"]) == [1, 1]


def test_case_10_without_usage_tokens_are_unknown(chats: Driven) -> None:
    record = chats.records["no usage"]
    assert (record.chunks, len(record.uncounted_s), record.completion_tokens) == ([], 2, None)


def test_usage_only_at_the_end_counts_no_chunk(chats: Driven) -> None:
    record = chats.records["usage at the end"]
    assert (record.chunks, len(record.uncounted_s), record.completion_tokens) == ([], 2, 5)


def test_the_watch_counts_chunks_of_known_and_of_unknown_tokens(chats: Driven) -> None:
    assert chats.end.watch.chunks == (4 + 1 + 2 + 1 + 2) + (2 + 2)


def test_a_gateway_is_not_asked_for_what_only_sglang_knows(drive: Drive, server: BadServer) -> None:
    server.replies["chat"] = chunked(CHAT)
    drive(["chat"], **ASKED, ignore_eos=False)
    assert "ignore_eos" not in server.seen[0]
