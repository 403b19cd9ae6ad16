"""Event streams: bytes of a reply's body in, frames out. Knows nothing of sockets, HTTP or what a frame says.

JSON has no raw line feed, so a line feed always ends a frame, however reads, HTTP chunks and frames are cut.
"""

from typing import Any

import msgspec

from kit.measurements import SpecCounters

DONE = b"[DONE]"
FRAME_LIMIT_BYTES = 64 << 20
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
            raise StreamBroken("bad_frame", f"truncated JSON: ...{excerpt(content[-80:])}")

    def check_end(self, finish_reason: str | None) -> None:
        """Raises StreamBroken when the reply ended before the answer did."""
        if self._held:
            raise StreamBroken("truncated", f"the reply ends within a frame: ...{excerpt(self._held[-1][-80:])}")
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


def decoded(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    """The object of a `data:` line. Raises StreamBroken."""
    try:
        return decoder.decode(memoryview(line)[5:])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StreamBroken("bad_frame", f"{error}: ...{excerpt(line.strip()[-80:])}") from None


def excerpt(content: bytes) -> str:
    """Text of a server in one line that is not too long."""
    return " ".join(content.decode(errors="replace").split())[:500]
