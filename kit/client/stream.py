"""Event streams: bytes of a reply's body in, token counts and the last frame out. Knows nothing of sockets or HTTP.

How a chunk's tokens are counted without decoding it. The server's frames carry the running `completion_tokens`; the
difference to the last frame is what the chunk brought. The count is found by searching the frame, from its end, for
the bytes `"completion_tokens":`. Generated text cannot forge them: within a JSON string every quote is written `\\"`,
so those bytes end in a quote that closes a string, and only a key's closing quote is followed by a colon. SGLang
writes `meta_info` (and OpenAI servers `usage`) after the text, so the search ends after a few hundred bytes however
long the text has grown. JSON has no raw line feed, so a line feed always ends a frame.
"""

import hashlib
import re
from typing import Any

import msgspec

from kit.measurements import SpecCounters

COUNT_KEY = b'"completion_tokens":'
DONE = b"[DONE]"
FRAME_LIMIT_BYTES = 64 << 20
_NUMBER = re.compile(rb"\s*(\d+)")
_DATA = b"data:"


class StreamBroken(Exception):
    """The stream cannot be a good answer; `kind` and the message become the request's error."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class EventStream:
    """One reply's frames. `chunks` holds (stamp, tokens) of each frame that carried tokens.

    `feed` takes the body as it arrives, cut anywhere; a frame belongs to the read that completed it.
    """

    __slots__ = (
        "_held", "_held_bytes", "chunks", "done_at", "first_text_at", "seen", "uncounted",
    )  # fmt: skip

    def __init__(self) -> None:
        self.chunks: list[tuple[float, int]] = []
        self.uncounted: list[float] = []
        self.seen = 0
        self.first_text_at: float | None = None
        self.done_at: float | None = None
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, data: bytes, at: float) -> None:
        """Takes the next bytes of the body, read at `at`. Raises StreamBroken."""
        if not self._held and data.endswith(b"}\n\n") and data.find(b"\n") == len(data) - 2 and data.startswith(_DATA):
            self.frame(data, at)  # nearly every read: exactly one whole frame
        else:
            self._feed_any(data, at)

    def frame(self, line: bytes, at: float) -> None:
        """One `data:` line that holds a JSON object, perhaps with line feeds behind it."""
        raise NotImplementedError

    def finish(self) -> "Outcome":
        """What the whole answer says of itself. Raises StreamBroken when it is not a whole, good answer."""
        raise NotImplementedError

    def _feed_any(self, data: bytes, at: float) -> None:
        *lines, rest = data.split(b"\n")
        if lines and self._held:
            lines[0] = b"".join([*self._held, lines[0]])
            self._held.clear()
            self._held_bytes = 0
        for line in lines:
            self._line(line.rstrip(b"\r"), at)
        if rest:
            self._hold(rest)

    def _hold(self, part: bytes) -> None:
        self._held.append(part)
        self._held_bytes += len(part)
        if self._held_bytes > FRAME_LIMIT_BYTES:
            raise StreamBroken("bad_frame", f"a frame of more than {FRAME_LIMIT_BYTES >> 20} MiB")

    def _line(self, line: bytes, at: float) -> None:
        if not line.startswith(_DATA):
            return  # blank, a comment or another field of the event
        content = line[5:].strip()
        if content == DONE:
            self.done_at = at
        elif content.endswith(b"}"):
            self.frame(line, at)
        else:
            raise StreamBroken("bad_frame", f"truncated JSON: ...{_excerpt(content[-80:])}")

    def _end_checked(self, finish_reason: str | None) -> None:
        if self._held:
            raise StreamBroken("truncated", f"the reply ends within a frame: ...{_excerpt(self._held[-1][-80:])}")
        if finish_reason is None:
            raise StreamBroken("truncated", "the reply ends without a finish reason")


class Outcome(msgspec.Struct, kw_only=True):
    """The server's own words about one answer; fields as in `measurements.RequestRecord`."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    retractions: int | None = None
    spec: SpecCounters | None = None
    finish_reason: str | None = None
    output_sha256: str | None = None
    server_e2e_s: float | None = None


# ---- SGLang's /generate ---------------------------------------------------------------------------------------------


class _Meta(msgspec.Struct):
    """`meta_info` of SGLang 0.4.10 to 0.5.23; of names that changed with the version, the newest comes first."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: dict[str, Any] | str | None = None
    e2e_latency: float | None = None
    num_retractions: int | None = None
    total_retractions: int | None = None
    spec_verify_ct: int | None = None
    spec_accept_length: float | None = None
    spec_num_correct_drafts: int | None = None
    spec_accepted_drafts: int | None = None
    spec_accept_token_num: int | None = None
    spec_num_proposed_drafts: int | None = None
    spec_proposed_drafts: int | None = None
    spec_draft_token_num: int | None = None


class _GenerateFrame(msgspec.Struct):
    text: str = ""
    output_ids: msgspec.Raw = msgspec.Raw(b"null")
    meta_info: _Meta = msgspec.field(default_factory=_Meta)
    error: Any = None


_generate_frame = msgspec.json.Decoder(_GenerateFrame)
_TEXT = b'data: {"text":"'
_NO_TEXT = b'data: {"text":""'


class GenerateStream(EventStream):
    """SGLang's native stream: `text` and `output_ids` grow from frame to frame, or come as increments.

    Which of the two is seen at the second frame with tokens: it holds all ids so far, or only its own. Servers that
    stream no ids are taken as cumulative; incremental streams came later than ids did (0.5.10).
    """

    __slots__ = ("_first", "_ids", "_incremental", "_last", "_texts")

    def __init__(self) -> None:
        super().__init__()
        self._first: bytes | None = None
        self._last: bytes | None = None
        self._incremental: bool | None = None
        self._ids: list[bytes] = []
        self._texts: list[str] = []

    def frame(self, line: bytes, at: float) -> None:
        """Counts the frame's new tokens; decodes it only when it says an error or is an increment."""
        key = line.rfind(COUNT_KEY)
        number = _NUMBER.match(line, key + len(COUNT_KEY)) if key >= 0 else None
        if number is None:
            return self._uncounted_frame(line)
        seen, count = self.seen, int(number[1])
        if count > seen:
            self.chunks.append((at, count - seen))
            self.seen = count
        self._last = line
        if self.first_text_at is None and _has_text(line):
            self.first_text_at = at
        if self._incremental is not False:
            self._gather(line, seen, count)
        return None

    def finish(self) -> Outcome:
        """Decodes the last frame."""
        if self._last is None:
            raise StreamBroken("no_tokens", "the reply carries no frame with a token count")
        last = _decoded(_generate_frame, self._last)
        meta = last.meta_info
        reason = _finish_reason(meta.finish_reason)
        self._end_checked(reason)
        if not self.chunks:
            raise StreamBroken("no_tokens", f"the answer holds no token; finish reason {reason}")
        return Outcome(
            prompt_tokens=meta.prompt_tokens,
            completion_tokens=meta.completion_tokens,
            reasoning_tokens=meta.reasoning_tokens,
            cached_tokens=meta.cached_tokens,
            retractions=_first_of(meta.num_retractions, meta.total_retractions),
            spec=_spec(meta),
            finish_reason=reason,
            output_sha256=self._digest(last),
            server_e2e_s=meta.e2e_latency,
        )

    def _gather(self, line: bytes, seen: int, count: int) -> None:
        if self._incremental is None:
            if seen == 0:
                self._first = line
                return
            if count == seen:
                return
            ids = _ids_text(_decoded(_generate_frame, line).output_ids)
            self._incremental = ids is not None and ids.count(b",") + bool(ids) < count
            if not self._incremental:
                self._first = None
                return
            self._keep(self._first)
        self._keep(line)

    def _keep(self, line: bytes | None) -> None:
        if line is not None:
            frame = _decoded(_generate_frame, line)
            self._ids += [ids] if (ids := _ids_text(frame.output_ids)) else []
            self._texts.append(frame.text)

    def _digest(self, last: _GenerateFrame) -> str:
        if self._incremental:
            return _digest(b",".join(self._ids), "".join(self._texts))
        return _digest(_ids_text(last.output_ids), last.text)

    def _uncounted_frame(self, line: bytes) -> None:
        frame = _decoded(_generate_frame, line)
        if frame.error is not None:
            raise StreamBroken("server_error", _excerpt(msgspec.json.encode(frame.error)))


# ---- OpenAI chat ----------------------------------------------------------------------------------------------------


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
        frame = _decoded(_chat_frame, line)
        if frame.error is not None:
            raise StreamBroken("server_error", _excerpt(msgspec.json.encode(frame.error)))
        if frame.usage is not None:
            self._usage = frame.usage
        for choice in frame.choices:
            self._choice(choice, frame.usage, at)

    def finish(self) -> Outcome:
        """Needs the usage chunk: without it the answer's tokens are not known, and stay None."""
        self._end_checked(self._finish)
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


STREAMS: dict[str, type[EventStream]] = {"generate": GenerateStream, "openai-chat": ChatStream}


def _digest(ids: bytes | None, text: str) -> str:
    """sha256 over the output ids when the server gives them, else over the text: equal outputs, equal digest."""
    return hashlib.sha256(ids or text.encode()).hexdigest()


def _ids_text(raw: msgspec.Raw) -> bytes | None:
    """Ids as JSON writes them, between the brackets and without blanks; thousands of them need no objects."""
    text = bytes(raw).replace(b" ", b"")
    return None if text == b"null" else text[1:-1]


def _decoded(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    try:
        return decoder.decode(memoryview(line)[5:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StreamBroken("bad_frame", f"{error}: ...{_excerpt(line.strip()[-80:])}") from None


def _has_text(line: bytes) -> bool:
    if line.startswith(_NO_TEXT):
        return False
    return line.startswith(_TEXT) or bool(_decoded(_generate_frame, line).text)


def _finish_reason(value: dict[str, Any] | str | None) -> str | None:
    if isinstance(value, dict):
        if value.get("type") == "abort":
            raise StreamBroken("abort", str(value.get("message", "the server aborted the request")))
        return str(value.get("type"))
    return value


def _spec(meta: _Meta) -> SpecCounters | None:
    correct = _first_of(meta.spec_num_correct_drafts, meta.spec_accepted_drafts, meta.spec_accept_token_num)
    proposed = _first_of(meta.spec_num_proposed_drafts, meta.spec_proposed_drafts, meta.spec_draft_token_num)
    if meta.spec_verify_ct is None and correct is None and proposed is None:
        return None
    return SpecCounters(
        verify_steps=meta.spec_verify_ct,
        correct_drafts=correct,
        proposed_drafts=proposed,
        accept_length=meta.spec_accept_length,
    )


def _first_of(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _excerpt(content: bytes) -> str:
    return " ".join(content.decode(errors="replace").split())[:500]
