"""A chat stream as SGLang sends it: a role, reasoning, text, several tokens in a chunk, an end, the usage."""

import json
from typing import Any

from bad_server import DONE


def chat_frame(delta: dict[str, Any] | None, usage: int | None = None, finish: str | None = None, **more: Any) -> bytes:
    """One chunk of an OpenAI chat stream; no delta: the closing usage chunk."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    counts = {"prompt_tokens": 9, "completion_tokens": usage, "total_tokens": 9 + (usage or 0), **more}
    body = {"object": "chat.completion.chunk", "choices": choices, "usage": None if usage is None else counts}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


CHAT = [
    chat_frame({"role": "assistant", "content": ""}, usage=1),
    chat_frame({"role": None, "content": None, "reasoning_content": "let me"}, usage=2),
    chat_frame({"content": ""}, usage=3),
    chat_frame({"content": " 猫 is"}, usage=6),
    chat_frame({"content": " here"}, usage=7),
    chat_frame({"content": None}, usage=8, finish="stop"),
    chat_frame(None, usage=9, reasoning_tokens=2, prompt_tokens_details={"cached_tokens": 4}),
    DONE,
]
