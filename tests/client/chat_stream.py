"""A chat stream as SGLang sends it: a role, reasoning, text, several tokens in a chunk, an end, the usage."""

from bad_server import DONE
from conftest import chat_frame

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
