"""SGLang's native stream, /generate. Knows its frames by version; knows nothing of sockets.

How a chunk's tokens are counted without decoding it. The server's frames carry the running `completion_tokens`; the
difference to the last frame is what the chunk brought. The count is found by searching the frame, from its end, for
the bytes `"completion_tokens":`. Generated text cannot forge them: within a JSON string every quote is written `\\"`,
so those bytes end in a quote that closes a string, and only a key's closing quote is followed by a colon; text is never
a key. SGLang writes `meta_info` after the text, so the search ends after a few hundred bytes however long the text has
grown.
"""

import hashlib
import re
from typing import Any

import msgspec

from kit.client.stream import EventStream, Outcome, StreamBroken, decoded, excerpt
from kit.measurements import SpecCounters

COUNT_KEY = b'"completion_tokens":'
_NUMBER = re.compile(rb"\s*(\d+)")
_TEXT = b'data: {"text":"'
_NO_TEXT = b'data: {"text":""'


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
        last = decoded(_generate_frame, self._last)
        meta = last.meta_info
        reason = _finish_reason(meta.finish_reason)
        self.check_end(reason)
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
            ids = _ids_text(decoded(_generate_frame, line).output_ids)
            self._incremental = ids is not None and ids.count(b",") + bool(ids) < count
            if not self._incremental:
                self._first = None
                return
            self._keep(self._first)
        self._keep(line)

    def _keep(self, line: bytes | None) -> None:
        if line is not None:
            frame = decoded(_generate_frame, line)
            self._ids += [ids] if (ids := _ids_text(frame.output_ids)) else []
            self._texts.append(frame.text)

    def _digest(self, last: _GenerateFrame) -> str:
        if self._incremental:
            return _digest(b",".join(self._ids), "".join(self._texts))
        return _digest(_ids_text(last.output_ids), last.text)

    def _uncounted_frame(self, line: bytes) -> None:
        frame = decoded(_generate_frame, line)
        if frame.error is not None:
            raise StreamBroken("server_error", excerpt(msgspec.json.encode(frame.error)))


def _digest(ids: bytes | None, text: str) -> str:
    """sha256 over the output ids when the server gives them, else over the text: equal outputs, equal digest."""
    return hashlib.sha256(ids or text.encode()).hexdigest()


def _ids_text(raw: msgspec.Raw) -> bytes | None:
    """Ids as JSON writes them, between the brackets and without blanks; thousands of them need no objects."""
    text = bytes(raw).replace(b" ", b"")
    return None if text == b"null" else text[1:-1]


def _has_text(line: bytes) -> bool:
    if line.startswith(_NO_TEXT):
        return False
    return line.startswith(_TEXT) or bool(decoded(_generate_frame, line).text)


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
