"""The metrics: one registry entry each, with tag, heading, unit, direction, definition and the function that takes it
from one trial's raw records. Knows nothing of arms, seeds and comparisons; adding a metric is adding one entry.

A metric is None where the records do not allow it: a missing number is never 0 or 1. Warm-ups are not looked at, and
failed requests take part in no metric but `failed_share`.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from statistics import fmean
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from kit.analysis import gpu
from kit.analysis.chunks import Chunks
from kit.analysis.quantiles import Numbers, linear
from kit.measurements import LockRecord, RequestRecord, TrialData

PEAK_WINDOW_S = 1.0
PerRequest: TypeAlias = Callable[[RequestRecord], "Iterable[float]"]
PerTrial: TypeAlias = Callable[[TrialData], "float | None"]
OfChunks: TypeAlias = Callable[[Chunks], "Iterable[float] | Numbers"]
Timed: TypeAlias = Literal["gap", "first token", "answer", "trial"]


class Metric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric. Either `trial` gives its value for a trial, or `request` gives values that pool over requests, or
    `chunks` gives the values that all successes' chunks add to the pool.

    `pool` says how values pool: a quantile between 0 and 1, or the mean (None). `scale` turns the record's unit into
    the shown one. `better` is the direction; "neither" describes and is not compared.
    """

    tag: str
    heading: str
    unit: str
    better: Literal["higher", "lower", "neither"]
    definition: str
    trial: PerTrial | None = None
    request: PerRequest | None = None
    chunks: OfChunks | None = None
    pool: float | None = None
    many: bool = False
    scale: float = 1.0
    compared: bool = False
    judged: bool = False
    digits: int = 2
    times: Timed | None = None

    @property
    def is_quantile(self) -> bool:
        """Whether the pooled value gets an order-statistic interval."""
        return self.pool is not None and not self.many


# ---- one request ----------------------------------------------------------------------------------------------------


def succeeded(trial: TrialData) -> list[RequestRecord]:
    """The measured requests that ended without error and carried at least one token."""
    return [r for r in trial.requests if not r.warmup and r.error is None and r.chunks]


def measured(trial: TrialData) -> list[RequestRecord]:
    """All requests but the warm-ups, failed ones too."""
    return [r for r in trial.requests if not r.warmup]


def _ttft(r: RequestRecord) -> Iterable[float]:
    return () if r.sent_s is None else (r.chunks[0][0] - r.sent_s,)


def _ttft_text(r: RequestRecord) -> Iterable[float]:
    return () if r.sent_s is None or r.first_text_s is None else (r.first_text_s - r.sent_s,)


def _queued(r: RequestRecord) -> Iterable[float]:
    return () if r.sent_s is None or r.scheduled_s is None else (r.sent_s - r.scheduled_s,)


def decode_span(r: RequestRecord) -> tuple[float, int] | None:
    """Seconds from the first to the last chunk and the tokens that came after the first chunk; None for one chunk."""
    if r.completion_tokens is None or len(r.chunks) < 2:
        return None
    tokens = r.completion_tokens - r.chunks[0][1]
    return (r.chunks[-1][0] - r.chunks[0][0], tokens) if tokens > 0 else None


def tpot_s(r: RequestRecord) -> float | None:
    """Seconds per output token after the first chunk; None for an answer of one chunk."""
    span = decode_span(r)
    return span[0] / span[1] if span else None


def e2e_s(r: RequestRecord) -> float | None:
    """Seconds from sending to the end of the answer."""
    if r.sent_s is None:
        return None
    return (r.done_s if r.done_s is not None else r.chunks[-1][0]) - r.sent_s


def _tpot_sglang(r: RequestRecord) -> Iterable[float]:
    latency = e2e_s(r)
    if latency is None or r.sent_s is None or (r.completion_tokens or 0) < 2:
        return ()
    first_s = r.chunks[0][0] if r.first_text_s is None else r.first_text_s
    return ((latency - (first_s - r.sent_s)) / ((r.completion_tokens or 0) - 1),)


def chunk_tokens(r: RequestRecord) -> int:
    """The tokens that came in the request's chunks."""
    return sum(map(itemgetter(1), r.chunks))


def _tpot(r: RequestRecord) -> Iterable[float]:
    return () if (value := tpot_s(r)) is None else (value,)


def _e2e(r: RequestRecord) -> Iterable[float]:
    return () if (value := e2e_s(r)) is None else (value,)


# ---- one trial ------------------------------------------------------------------------------------------------------


def window_s(done: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """From the first request sent to the last token of a trial's successes, in its seconds; None without a success."""
    sent = [r.sent_s for r in done if r.sent_s is not None]
    return (min(sent), max(r.chunks[-1][0] for r in done)) if sent else None


def duration_s(trial: TrialData) -> float | None:
    """The length of that window; None when it is empty."""
    window = window_s(succeeded(trial))
    return window[1] - window[0] if window and window[1] > window[0] else None


def output_tokens(trial: TrialData) -> int | None:
    """Server-counted tokens of the successes; None when the server counted none for one of them."""
    counts = [r.completion_tokens for r in succeeded(trial)]
    known = [c for c in counts if c is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _output_throughput(trial: TrialData) -> float | None:
    tokens, seconds = output_tokens(trial), duration_s(trial)
    return tokens / seconds if tokens is not None and seconds else None


def _request_throughput(trial: TrialData) -> float | None:
    seconds = duration_s(trial)
    return len(succeeded(trial)) / seconds if seconds else None


def accept_length(trial: TrialData) -> float | None:
    """Emitted tokens per verify step over the trial's own requests; requests that were retracted stand apart."""
    counted = [r for r in succeeded(trial) if _verified(r) and not r.retractions]
    steps = sum(_verified(r) for r in counted)
    return sum((r.completion_tokens or 1) - 1 for r in counted) / steps if steps else None


def _accept_strict(trial: TrialData) -> float | None:
    counted = [r for r in succeeded(trial) if _verified(r) and r.spec and r.spec.correct_drafts is not None]
    steps = sum(_verified(r) for r in counted)
    return 1 + sum(r.spec.correct_drafts or 0 for r in counted if r.spec) / steps if steps else None


def _verified(r: RequestRecord) -> int:
    return (r.spec.verify_steps or 0) if r.spec and r.completion_tokens is not None else 0


def _mean(field: Callable[[RequestRecord], int | None]) -> PerTrial:
    def mean(trial: TrialData) -> float | None:
        values = [v for r in succeeded(trial) if (v := field(r)) is not None]
        return sum(values) / len(values) if values else None

    return mean


def failed_share(trial: TrialData) -> float | None:
    """Failed requests over all measured ones; a request without a single token has failed."""
    asked = measured(trial)
    return 1 - len(succeeded(trial)) / len(asked) if asked else None


def cached_share(trial: TrialData) -> float | None:
    """Prompt tokens that the server took from its cache, over all prompt tokens."""
    known = [r for r in succeeded(trial) if r.cached_tokens is not None and r.prompt_tokens]
    total = sum(r.prompt_tokens or 0 for r in known)
    return sum(r.cached_tokens or 0 for r in known) / total if total else None


def retractions(trial: TrialData) -> float | None:
    """Times that a running request was put back into the queue: by the requests' own counters, else by the log."""
    own = [r.retractions for r in succeeded(trial) if r.retractions is not None]
    log = trial.record.log
    return float(max(sum(own), log.retracted_requests)) if own or log.decode_lines else None


def cards(trial: TrialData, lock: LockRecord) -> gpu.GpuSummary | None:
    """What the cards did from the first request sent to the last token; None where none was sampled."""
    window, zero_s = window_s(succeeded(trial)), trial.record.zero_monotonic_s
    if window is None or not trial.gpu:
        return None
    return gpu.summarize(trial.gpu, lock, (zero_s + window[0], zero_s + window[1]), output_tokens(trial))


def _joules_per_token(trial: TrialData) -> float | None:
    seen = cards(trial, LockRecord())
    return seen.joules_per_output_token if seen else None


# ---- all chunks of a trial ------------------------------------------------------------------------------------------


def _peak_throughput(chunks: Chunks) -> Iterable[float]:
    """Tokens of the fullest of the windows of about one second that tile the trial: so never below the average."""
    window = window_s(chunks.requests)
    if window is None or window[1] <= window[0]:
        return ()
    start, seconds = window[0], window[1] - window[0]
    windows = max(1, int(seconds / PEAK_WINDOW_S))
    at = np.clip(((chunks.times_s - start) / seconds * windows).astype(int), 0, windows - 1)
    return (float(np.bincount(at, chunks.tokens, windows).max() * windows / seconds),)


def _itl_sglang(chunks: Chunks) -> Numbers:
    tokens = chunks.gap_tokens
    found: Numbers = np.repeat(chunks.gaps_s, tokens) / np.repeat(tokens, tokens)
    return found


def _gaps(chunks: Chunks) -> Numbers:
    return chunks.gaps_s


def _longest_gap(chunks: Chunks) -> Numbers:
    return chunks.longest_gaps_s


def _tokens_per_chunk(chunks: Chunks) -> Iterable[float]:
    return (int(chunks.tokens.sum()) / len(chunks.tokens),) if len(chunks.tokens) else ()


# ---- the registry ---------------------------------------------------------------------------------------------------

METRICS: tuple[Metric, ...] = (
    Metric(
        tag="output_throughput_tok_s", times="trial", heading="Output", unit="tok/s", better="higher",
        trial=_output_throughput,
        compared=True, judged=True, digits=1,
        definition="Completion tokens as the server counted them, over the time from the first request sent to the "
        "last token; flush and info calls lie outside.",
    ),
    Metric(
        tag="request_throughput_req_s", times="trial", heading="Requests", unit="req/s", better="higher",
        trial=_request_throughput,
        compared=True, digits=3, definition="Answered requests over the same time.",
    ),
    Metric(
        tag="peak_throughput_tok_s", times="trial", heading="Peak output", unit="tok/s", better="neither",
        chunks=_peak_throughput,
        digits=1, definition="Tokens of the fullest of the windows of about one second that tile the trial; so it is "
        "never below the average.",
    ),
    Metric(
        tag="ttft_p50_ms", times="first token", heading="TTFT p50", unit="ms", better="lower",
        request=_ttft, pool=0.5, scale=1e3,
        compared=True, digits=1,
        definition="Sent (just before the first byte is written, connection open) to the first chunk that carries "
        "generated tokens; a role-only or empty chunk does not count.",
    ),
    Metric(
        tag="ttft_p99_ms", times="first token", heading="TTFT p99", unit="ms", better="lower",
        request=_ttft, pool=0.99, scale=1e3,
        compared=True, judged=True, digits=1, definition="The 99th percentile of the same.",
    ),
    Metric(
        tag="ttft_text_p50_ms", times="first token", heading="TTFT p50 (SGLang)", unit="ms", better="lower",
        request=_ttft_text, pool=0.5,
        scale=1e3, digits=1,
        definition="Sent to the first chunk with non-empty text, as SGLang's own client takes it; kept so that "
        "published figures compare.",
    ),
    Metric(
        tag="tpot_p50_ms", times="answer", heading="TPOT p50", unit="ms", better="lower", request=_tpot, pool=0.5,
        scale=1e3, compared=True, judged=True,
        definition="Per request: (last chunk - first chunk) / (tokens - tokens in the first chunk); not available for "
        "an answer of one chunk.",
    ),
    Metric(
        tag="tpot_p99_ms", times="answer", heading="TPOT p99", unit="ms", better="lower", request=_tpot,
        pool=0.99, scale=1e3, compared=True, definition="The 99th percentile of the same over requests.",
    ),
    Metric(
        tag="tpot_sglang_mean_ms", times="answer", heading="TPOT mean (SGLang)", unit="ms", better="lower",
        request=_tpot_sglang,
        scale=1e3, compared=True,
        definition="(latency - TTFT) / (tokens - 1) per request, mean over requests, as SGLang's own client prints it.",
    ),
    Metric(
        tag="itl_sglang_p50_ms", times="gap", heading="ITL p50 (SGLang)", unit="ms", better="lower",
        chunks=_itl_sglang, pool=0.5,
        many=True, scale=1e3,
        definition="Each gap divided by the tokens of its chunk and repeated for each of them, as SGLang's own client "
        "prints it; this hides bursts, and is kept so that published figures compare.",
    ),
    Metric(
        tag="itl_sglang_p99_ms", times="gap", heading="ITL p99 (SGLang)", unit="ms", better="lower",
        chunks=_itl_sglang, pool=0.99,
        many=True, scale=1e3, compared=True, definition="The 99th percentile of the same.",
    ),
    Metric(
        tag="gap_longest_p50_ms", times="gap", heading="Longest gap p50", unit="ms", better="lower",
        chunks=_longest_gap, pool=0.5,
        scale=1e3, compared=True, digits=1,
        definition="Each request's longest time between two chunks that carry tokens: the longest silence its reader "
        "felt; the median over requests.",
    ),
    Metric(
        tag="gap_longest_p99_ms", times="gap", heading="Longest gap p99", unit="ms", better="lower",
        chunks=_longest_gap,
        pool=0.99, scale=1e3, compared=True, judged=True, digits=1,
        definition="The 99th percentile of the same over requests. Arms are compared on it, since fewer chunks put "
        "the same stall at another quantile of the pooled gaps.",
    ),
    Metric(
        tag="gap_pooled_p99_ms", times="gap", heading="Gap p99 (pooled)", unit="ms", better="lower",
        chunks=_gaps, pool=0.99,
        many=True, scale=1e3, digits=1,
        definition="The 99th percentile over all gaps of all requests: shown, not judged.",
    ),
    Metric(
        tag="e2e_p50_ms", times="answer", heading="End to end p50", unit="ms", better="lower", request=_e2e,
        pool=0.5, scale=1e3, compared=True, digits=0, definition="Sent to the end of the answer.",
    ),
    Metric(
        tag="e2e_p99_ms", times="answer", heading="End to end p99", unit="ms", better="lower", request=_e2e,
        pool=0.99, scale=1e3, compared=True, digits=0, definition="The 99th percentile of the same.",
    ),
    Metric(
        tag="queued_p99_ms", heading="Waited before sending p99", unit="ms", better="lower", request=_queued,
        pool=0.99, scale=1e3, digits=1,
        definition="Scheduled to sent, in open loop: the time that TTFT leaves out when a rate and a cap meet.",
    ),
    Metric(
        tag="accept_length", heading="Accept length", unit="tok/step", better="neither", trial=accept_length,
        definition="Emitted: sum of (completion tokens - 1) over sum of verify steps of the trial's own requests, "
        "retracted ones apart; drafts past the end of an answer do not count.",
    ),
    Metric(
        tag="accept_length_strict", heading="Accept length (strict)", unit="tok/step", better="neither",
        trial=_accept_strict, definition="1 + correct drafts / verify steps, from the server's counters.",
    ),
    Metric(
        tag="accept_length_server", heading="Accept length (server)", unit="tok/step", better="neither",
        trial=lambda t: t.record.avg_spec_accept_length,
        definition="avg_spec_accept_length of /server_info, which misses the tail of a short run.",
    ),
    Metric(
        tag="tokens_per_chunk", heading="Tokens per chunk", unit="tok", better="neither", chunks=_tokens_per_chunk,
        definition="Tokens over chunks that carried tokens.",
    ),
    Metric(
        tag="joules_per_token", times="trial", heading="Energy", unit="J/tok", better="lower",
        trial=_joules_per_token, compared=True,
        digits=3, definition="Energy of whole cards over the trial, by their counter or their power, over completion "
        "tokens.",
    ),
    Metric(
        tag="prompt_tokens", heading="Prompt", unit="tok", better="neither", trial=_mean(lambda r: r.prompt_tokens),
        digits=1, definition="Mean prompt length as the server counted it.",
    ),
    Metric(
        tag="completion_tokens", heading="Answer", unit="tok", better="neither",
        trial=_mean(lambda r: r.completion_tokens), digits=1,
        definition="Mean answer length as the server counted it.",
    ),
    Metric(
        tag="failed_share", heading="Failed", unit="share", better="neither", trial=failed_share, digits=4,
        definition="Requests that ended in an error or without a token, over all that were measured. All other "
        "metrics are over the successes.",
    ),
    Metric(
        tag="cached_share", heading="Cached", unit="share", better="neither", trial=cached_share, digits=4,
        definition="Prompt tokens that the server took from its cache, over all prompt tokens.",
    ),
    Metric(
        tag="retractions", heading="Retractions", unit="", better="neither", trial=retractions, digits=0,
        definition="Times that a running request was put back into the queue because the pool was full.",
    ),
)  # fmt: skip
BY_TAG = {m.tag: m for m in METRICS}


def values(metric: Metric, trial: TrialData, chunks: Chunks) -> Numbers:
    """What a trial gives to the pool, in order: a number of each request (or gap), or its own one number; scaled.
    `chunks` are those of its successes."""
    if metric.trial is None:
        return values_of_answers(metric, chunks)
    found = metric.trial(trial)
    return np.array([] if found is None else [found * metric.scale], float)


def values_of_answers(metric: Metric, chunks: Chunks) -> Numbers:
    """What answers give to the pool of a metric that is taken from them alone, in order and scaled."""
    if metric.chunks is not None:
        taken = np.asarray(metric.chunks(chunks), float)
    else:
        assert metric.request is not None
        taken = np.fromiter(chain.from_iterable(map(metric.request, chunks.requests)), float)
    scaled: Numbers = taken * metric.scale
    scaled.sort()
    return scaled


def pooled(metric: Metric, numbers: Numbers) -> float | None:
    """The pooled number of what is in order: the metric's quantile, or the mean; None of nothing."""
    if not len(numbers):
        return None
    return fmean(numbers) if metric.pool is None else linear(numbers, metric.pool)


def value(metric: Metric, trial: TrialData) -> float | None:
    """The metric of one trial; None where its records do not allow it."""
    return pooled(metric, values(metric, trial, Chunks(succeeded(trial))))
