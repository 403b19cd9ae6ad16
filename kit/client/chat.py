"""OpenAI's chat stream, for servers behind a gateway. Knows its chunks; knows nothing of sockets."""

import hashlib
from typing import Any

import msgspec

from kit.client.stream import EventStream, Outcome, StreamBroken, decoded, excerpt


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class _ChatFrame(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_chat_frame = msgspec.json.Decoder(_ChatFrame)


class ChatStream(EventStream):
    """OpenAI's chat stream: small increments, decoded as they come.

    A chunk counts when it carries output (text, reasoning or a tool call) or ends the answer; the role-only chunk that
    opens the stream does neither, whatever its usage says. Where the server gives no usage with each chunk, the times
    of chunks go to `uncounted`, since their tokens are not known, and `chunks` stays empty.
    """

    __slots__ = ("_finish", "_hash", "_outputs", "_usage", "_without_count")

    def __init__(self) -> None:
        super().__init__()
        self._usage: _Usage | None = None
        self._finish: str | None = None
        self._outputs: list[float] = []
        self._without_count = False
        self._hash = hashlib.sha256()

    def frame(self, line: bytes, at: float) -> None:
        """Decodes one increment."""
        frame = decoded(_chat_frame, line)
        if frame.error is not None:
            raise StreamBroken("server_error", excerpt(msgspec.json.encode(frame.error)))
        if frame.usage is not None:
            self._usage = frame.usage
        for choice in frame.choices:
            self._choice(choice, frame.usage, at)

    def finish(self) -> Outcome:
        """Needs the usage chunk: without it the answer's tokens are not known, and stay None."""
        self.check_end(self._finish)
        if not self.chunks and not self._outputs:
            raise StreamBroken("no_tokens", f"the answer holds no token; finish reason {self._finish}")
        if self._without_count:
            self.chunks, self.uncounted = [], self._outputs
        else:
            self._count_rest()
        usage = self._usage or _Usage()
        return Outcome(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens or (usage.completion_tokens_details or {}).get("reasoning_tokens"),
            cached_tokens=(usage.prompt_tokens_details or {}).get("cached_tokens"),
            finish_reason=self._finish,
            output_sha256=self._hash.hexdigest(),
        )

    def _choice(self, choice: _Choice, usage: _Usage | None, at: float) -> None:
        self._finish = choice.finish_reason or self._finish
        output = self._output(choice.delta)
        if output and self.first_text_at is None:
            self.first_text_at = at
        count = None if usage is None else usage.completion_tokens
        if output:
            self._outputs.append(at)
        if count is None:
            self._without_count |= output
        elif count > self.seen and (output or choice.finish_reason):
            self.chunks.append((at, count - self.seen))
            self.seen = count

    def _output(self, delta: _Delta) -> bool:
        text = (delta.content or "") + (delta.reasoning_content or "") + (delta.reasoning or "")
        calls = msgspec.json.encode(delta.tool_calls) if delta.tool_calls else b""
        self._hash.update(text.encode() + calls)
        return bool(text or calls)

    def _count_rest(self) -> None:
        """Tokens that only the closing usage chunk tells of (an end token has no text) came with the last chunk."""
        total = self._usage.completion_tokens if self._usage else None
        if total is None or total <= self.seen:
            return
        at, tokens = self.chunks[-1]
        self.chunks[-1] = (at, tokens + total - self.seen)
        self.seen = total
