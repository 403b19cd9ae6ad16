"""OpenAI chat streams: which chunks count, and what is unknown when a gateway leaves usage out."""

from typing import Any

from bad_server import DONE, BadServer, chunked
from chat_stream import CHAT
from conftest import Drive, chat_frame

ASKED: dict[str, Any] = {"dialect": "openai-chat", "model": "m"}


def counts(frames: list[bytes], drive: Drive, server: BadServer) -> list[int]:
    server.replies["chat"] = chunked([*frames, DONE])
    (record,), _ = drive(["chat"], **ASKED)
    assert record.error is None
    return [tokens for _, tokens in record.chunks]


def test_a_chat_record(drive: Drive, server: BadServer) -> None:
    server.replies["chat"] = chunked(CHAT)
    (record,), _ = drive(["chat"], **ASKED)
    assert record.error is None
    assert [tokens for _, tokens in record.chunks] == [2, 4, 1, 2]
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (9, 9, 4)
    assert (record.reasoning_tokens, record.finish_reason, record.uncounted_s) == (2, "stop", [])
    assert server.seen[0] == {
        "model": "m", "messages": [{"role": "user", "content": "chat"}], "temperature": 0.0, "ignore_eos": True,
        "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip


def test_case_17_role_only_chunk_is_no_first_token(drive: Drive, server: BadServer) -> None:
    role, text = chat_frame({"role": "assistant", "content": ""}, usage=1), chat_frame({"content": "x"}, usage=1)
    assert counts([role, text, chat_frame({}, usage=1, finish="stop")], drive, server) == [1]


def test_case_18_reasoning_is_output(drive: Drive, server: BadServer) -> None:
    thought = [chat_frame({"reasoning_content": "hm"}, usage=2), chat_frame({"reasoning": "hm"}, usage=3)]
    assert counts([*thought, chat_frame({}, usage=3, finish="length")], drive, server) == [2, 1]


def test_tool_calls_are_output(drive: Drive, server: BadServer) -> None:
    call = chat_frame({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}, usage=5)
    assert counts([call, chat_frame({}, usage=5, finish="tool_calls")], drive, server) == [5]


def test_case_11_an_early_end_counts_what_came(drive: Drive, server: BadServer) -> None:
    text = chat_frame({"content": "x"}, usage=1)
    end = [chat_frame({}, usage=2, finish="stop"), chat_frame(None, usage=2)]
    assert counts([text, *end], drive, server) == [1, 1]


def test_case_10_without_usage_tokens_are_unknown(drive: Drive, server: BadServer) -> None:
    server.replies["chat"] = chunked(
        [chat_frame({"role": "assistant"}), chat_frame({"content": "x"}), chat_frame({"content": "y"}, finish="stop")]
    )
    (record,), end = drive(["chat"], **ASKED)
    assert record.error is None
    assert (record.chunks, len(record.uncounted_s), record.completion_tokens) == ([], 2, None)
    assert end.watch.chunks == 2


def test_usage_only_at_the_end_counts_no_chunk(drive: Drive, server: BadServer) -> None:
    frames = [chat_frame({"content": "x"}), chat_frame({"content": "y"}), chat_frame({}, finish="stop")]
    server.replies["chat"] = chunked([*frames, chat_frame(None, usage=5), DONE])
    (record,), _ = drive(["chat"], **ASKED)
    assert (record.chunks, len(record.uncounted_s), record.completion_tokens) == ([], 2, 5)


def test_a_gateway_is_not_asked_for_what_only_sglang_knows(drive: Drive, server: BadServer) -> None:
    server.replies["chat"] = chunked(CHAT)
    drive(["chat"], **ASKED, ignore_eos=False)
    assert "ignore_eos" not in server.seen[0]
