"""Makes the record of an exchange that is over. Knows nothing of sockets; runs between reads, never within one."""

from kit.client.connection import Exchange
from kit.client.stream import Outcome, StreamBroken
from kit.measurements import RequestError, RequestRecord


def request_record(exchange: Exchange, zero_s: float, warmup: bool) -> RequestRecord:
    """The record of one exchange; `zero_s` is the trial's zero on CLOCK_MONOTONIC."""
    outcome = _outcome(exchange)
    stream = exchange.stream
    return RequestRecord(
        index=exchange.index,
        warmup=warmup,
        scheduled_s=_since(zero_s, exchange.scheduled_at),
        sent_s=_since(zero_s, exchange.sent_at),
        chunks=[(at - zero_s, tokens) for at, tokens in stream.chunks],
        uncounted_s=[at - zero_s for at in stream.uncounted],
        first_text_s=_since(zero_s, stream.first_text_at),
        done_s=_since(zero_s, exchange.done_at),
        prompt_tokens=outcome.prompt_tokens,
        completion_tokens=outcome.completion_tokens,
        reasoning_tokens=outcome.reasoning_tokens,
        cached_tokens=outcome.cached_tokens,
        retractions=outcome.retractions,
        spec=outcome.spec,
        finish_reason=outcome.finish_reason,
        output_sha256=outcome.output_sha256,
        server_e2e_s=outcome.server_e2e_s,
        error=_error(exchange),
    )


def _outcome(exchange: Exchange) -> Outcome:
    if exchange.error_kind is None:
        try:
            return exchange.stream.finish()
        except StreamBroken as broken:
            exchange.fail(broken.kind, str(broken))
    return Outcome()


def _error(exchange: Exchange) -> RequestError | None:
    if exchange.error_kind is None:
        return None
    return RequestError(kind=exchange.error_kind, detail=exchange.error_detail, status=exchange.status)


def _since(zero_s: float, at: float | None) -> float | None:
    return None if at is None else at - zero_s
