"""Doubts about trials: what requests, client and log say of them. One rule or check each; numbers and limits inside."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from statistics import median

from kit.analysis import metrics, trust
from kit.analysis.doubt import Case, Check, Doubt, Rule, apply, loads
from kit.analysis.metrics import measured, succeeded
from kit.analysis.quantiles import fewest_for_upper_bound
from kit.analysis.ratios import CLASSES
from kit.analysis.sheet import Entry
from kit.analysis.words import percent
from kit.measurements import TrialData

CACHED_BEYOND_SHARED = 0.01
LENGTHS_OFF = 0.02
SMALL_ACCEPT_LENGTH = 1.2
TAIL_FACTOR = 5.0
ONE_CHUNK_SHARE = 0.05
COUNTS_OFF = 0.05
LATE_SHARE = 0.05
IN_STEP_SPAN = 0.02
IN_STEP_SHARE = 0.5
IN_STEP_USERS = 4


def _beyond_shared(case: Case, entry: Entry) -> float | None:
    """Cached share of the prompts beyond what the workload's own prompts share with each other."""
    cached, prompt = entry.values.get("cached_share"), entry.values.get("prompt_tokens")
    if cached is None or not prompt:
        return None
    record = entry.trial.record
    workload = next((w for w in case.m.run.workloads if (w.dataset, w.seed) == (record.dataset, record.seed)), None)
    shared = (workload.shared_prefix_tokens or 0) / (workload.requests * prompt) if workload else 0.0
    return cached - shared


def _off(realised: float | None, asked: float | None) -> float | None:
    return abs(realised / asked - 1) if realised is not None and asked else None


def _prompt_off(case: Case, entry: Entry) -> float | None:
    data = case.scenario.datasets[entry.point.dataset]
    asked = data.input_len * (1 + data.range_ratio) / 2 if data.input_len else None
    return _off(entry.values.get("prompt_tokens"), asked)


def _answer_off(case: Case, entry: Entry) -> float | None:
    data = case.scenario.datasets[entry.point.dataset]
    asked = data.output_len * (1 + data.range_ratio) / 2 if data.output_len and data.ignore_eos else None
    return _off(entry.values.get("completion_tokens"), asked)


def _own_accept_length(case: Case, entry: Entry) -> float | None:
    """The accept length that draft and target reached by themselves; None where it was forced."""
    forced = any(c.arm == entry.arm and c.forced_accept_length is not None for c in case.conditions)
    return None if forced else entry.values.get("accept_length")


def _tail_factor(_: Case, entry: Entry) -> float | None:
    p50, p99 = entry.values.get("ttft_p50_ms"), entry.values.get("ttft_p99_ms")
    return p99 / p50 if p50 and p99 is not None else None


def _one_chunk_share(_: Case, entry: Entry) -> float | None:
    long = [r for r in succeeded(entry.trial) if (r.completion_tokens or 0) > 1]
    return sum(len(r.chunks) == 1 for r in long) / len(long) if long else None


def _uncounted_share(_: Case, entry: Entry) -> float | None:
    done = succeeded(entry.trial)
    return sum(r.completion_tokens is None for r in done) / len(done) if done else None


def _counts_off(_: Case, entry: Entry) -> float | None:
    """The worst request's difference between tokens in chunks and tokens that the server counted."""
    off = [
        abs(metrics.chunk_tokens(r) / r.completion_tokens - 1) for r in succeeded(entry.trial) if r.completion_tokens
    ]
    return max(off, default=None)


def _late_share(_: Case, entry: Entry) -> float | None:
    late, first = entry.values.get("queued_p99_ms"), entry.values.get("ttft_p50_ms")
    return late / first if entry.point.rate_per_s is not None and late is not None and first else None


def _in_step_share(_: Case, entry: Entry) -> float | None:
    """The share of the users that sent a request in one moment, `IN_STEP_SPAN` of an answer's time either way: the
    median over the requests. A closed loop of equal answers keeps its first wave: then this is 1."""
    times = [(r.sent_s, e2e) for r in succeeded(entry.trial) if r.sent_s is not None and (e2e := metrics.e2e_s(r))]
    if entry.point.rate_per_s is not None or entry.point.concurrency < IN_STEP_USERS or not times:
        return None
    sends, span = sorted(sent for sent, _ in times), IN_STEP_SPAN * median(took for _, took in times)
    together = median(bisect_right(sends, t + span) - bisect_left(sends, t - span) for t in sends)
    return min(1.0, together / entry.point.concurrency)


def _chunk_rate_share(case: Case, entry: Entry) -> float | None:
    """The trial's chunks per second over the highest rate that the client's self-test vouches for."""
    sitting = next((s for s in case.m.sittings if s.number == entry.start.sitting), None)
    seconds = metrics.duration_s(entry.trial)
    if sitting is None or sitting.selftest is None or not seconds or not sitting.selftest.trusted_chunks_per_s:
        return None
    chunks = sum(len(r.chunks) for r in succeeded(entry.trial))
    return chunks / seconds / sitting.selftest.trusted_chunks_per_s


RULES = (
    Rule(
        tag="cached-tokens", number=_beyond_shared, limit=CACHED_BEYOND_SHARED, severity="severe",
        text="{percent:.1f} % of the prompt tokens came from the server's cache beyond what the workload itself "
        "shares, at {loads}",
        advice="The prompts were not cold: see the trial's flush, and what kept prompts across it.",
    ),
    Rule(
        tag="errors", number=lambda _, e: metrics.failed_share(e.trial), limit=0.0,
        text="up to {percent:.2f} % of the requests failed at {loads}; figures are over the successes",
        advice="The kinds of error stand in requests.jsonl; a trial above [limits] failed_share is not used.",
    ),
    Rule(
        tag="concurrency-not-reached", number=lambda _, e: e.trial.record.watch.in_flight_share, below=True,
        limit=trust.IN_FLIGHT, severity="severe",
        text="only {percent:.1f} % of the asked concurrency was in flight at {loads}",
        advice="The client was the bottleneck, and no verdict leans on any figure there: give it cores of its own.",
    ),
    Rule(
        tag="chunk-rate", number=_chunk_rate_share, limit=1.0,
        text="{number:.2f} times as many chunks per second as the client's self-test vouches for, at {loads}",
        advice="Run `invoke selftest` on a quiet machine and give the client cores of its own.",
    ),
    Rule(
        tag="small-accept-length", number=_own_accept_length, below=True, limit=SMALL_ACCEPT_LENGTH,
        text="an accept length of {number:.2f} at {loads}: almost every draft was thrown away",
        advice="Check that draft and target belong together, and the chat template; else turn speculation off.",
    ),
    Rule(
        tag="prompt-length", number=_prompt_off, limit=LENGTHS_OFF,
        text="the prompts' mean length on the server is {percent:.1f} % off what the scenario asks, at {loads}",
        advice="Compare on the realised lengths in the table; the tokenizer or the end of a text changes the count.",
    ),
    Rule(
        tag="answer-length", number=_answer_off, limit=LENGTHS_OFF,
        text="the answers' mean length is {percent:.1f} % off what the scenario asks although the end token is "
        "ignored, at {loads}",
        advice="Look for a context limit or a stop rule that ended answers early.",
    ),
    Rule(
        tag="compiled", number=lambda _, e: float(e.trial.record.log.compiled), limit=0.0, severity="severe",
        text="the server compiled kernels during trials at {loads}",
        advice="Raise [sweep] warmup_per_user and repeat these trials: their tails are the compiler's.",
    ),
    Rule(
        tag="retractions", number=lambda _, e: e.values.get("retractions"), limit=0.0, severity="note",
        text="up to {number:.0f} running requests a trial went back into the queue at {loads}: the pool was full",
        advice="Set --max-running-requests to what the pool fits, or give the pool more memory.",
    ),
    Rule(
        tag="long-tail", number=_tail_factor, limit=TAIL_FACTOR, severity="note",
        text="the P99 of TTFT is {number:.1f} times its median at {loads}",
        advice="Read the P99 beside the median: waiting for a slot or the server's tokenizer makes such tails.",
    ),
    Rule(
        tag="one-chunk-answers", number=_one_chunk_share, limit=ONE_CHUNK_SHARE,
        text="{percent:.0f} % of the answers came in a single chunk at {loads}, so they have no TPOT and no gaps",
        advice="Look for a proxy that buffers the stream, or a stream interval above 1.",
    ),
    Rule(
        tag="no-usage", number=_uncounted_share, limit=0.0,
        text="the server counted no tokens for {percent:.1f} % of the answers at {loads}: token metrics are not "
        "available",
        advice="Ask the server for usage; counts by another tokenizer would be no substitute.",
    ),
    Rule(
        tag="token-counts", number=_counts_off, limit=COUNTS_OFF,
        text="the tokens in an answer's chunks are up to {percent:.0f} % off the server's own count at {loads}",
        advice="TPOT trusts the server's count; gaps per token of these answers do not add up.",
    ),
    Rule(
        tag="in-step", number=_in_step_share, limit=IN_STEP_SHARE, severity="note",
        text="up to {percent:.0f} % of the users sent in one moment at {loads}: answers of one length keep them in "
        "step, and a first token waits for a whole wave of prompts",
        advice="Real traffic spreads: measure answers of unlike lengths (ignore_eos = false, or range_ratio below 1) "
        "before you read TTFT as that of steady traffic.",
    ),
    Rule(
        tag="late-sending", number=_late_share, limit=LATE_SHARE,
        text="requests were sent late by {percent:.0f} % of the median TTFT (P99) at {loads}",
        advice="Add the wait before sending to TTFT: the client could not keep to the schedule.",
    ),
)  # fmt: skip


def client_lag(case: Case) -> Iterable[Doubt]:
    """Clients that woke late by too much of what some metric times: one doubt for each arm and data set."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in case.sheet:
        if max(entry.lags.values(), default=0.0) > trust.LAG_SHARE:
            groups.setdefault((entry.arm, entry.point.dataset), []).append(entry)
    for (arm, dataset), late in groups.items():
        worst, timed = max((share, timed) for e in late for timed, share in e.lags.items())
        blurred = {t for e in late for t, share in e.lags.items() if share > trust.LAG_SHARE}
        lost = [x for x in metrics.METRICS if x.compared and x.times in blurred]
        yield Doubt(
            tag="client-lag", subject=f"{arm} on {dataset}", number=worst, limit=trust.LAG_SHARE,
            severity="severe" if any(x.tag in CLASSES for x in lost) else "warning",
            text=f"the client's P99 lag was up to {percent(worst)} of {trust.SPANS[timed]} at {loads(late)}; not "
            f"judged where it is over {percent(trust.LAG_SHARE)} of what they time: "
            f"{', '.join(x.heading for x in lost)}",
            advice="Give the client cores of its own, or a host whose idle cores wake faster. The metrics not named "
            "are judged: the lag is a small part of what they time.",
        )  # fmt: skip


def few_samples(case: Case) -> Iterable[Doubt]:
    """P99s over fewer requests than an upper bound needs, one doubt for each data set."""
    limit = fewest_for_upper_bound(0.99)
    for dataset in case.scenario.datasets:
        few = [r for r in case.rows if r.dataset == dataset and r.requests < limit]
        if few:
            at = sorted({r.load for r in few}, key=lambda text: (len(text), text))
            yield Doubt(
                tag="few-samples",
                subject=dataset,
                text=f"as few as {min(r.requests for r in few)} requests behind a P99 (at {', '.join(at)})",
                number=float(min(r.requests for r in few)),
                limit=float(limit),
                advice="Such a P99 is indicative: raise [sweep] requests_per_user or min_requests, or add seeds.",
                severity="note",
            )


def dirty_flush(case: Case) -> Iterable[Doubt]:
    """Trials that did not begin with an empty cache."""
    dirty = [e for e in case.sheet if e.trial.record.flush.status != 200]
    if dirty:
        yield Doubt(
            tag="flush", subject=", ".join(sorted({e.arm for e in dirty})),
            text=f"the flush before {len(dirty)} trials did not succeed, at {loads(dirty)}", number=float(len(dirty)),
            limit=0.0, advice="These trials began warm: repeat them.", severity="severe",
        )  # fmt: skip


def void_trials(case: Case) -> Iterable[Doubt]:
    """Trials whose figures are not used, with why, and those without a single answer."""
    used = {id(e.trial) for e in case.sheet}
    for trial in trust.latest(case.m.trials):
        if id(trial) not in used:
            yield Doubt(
                tag="void-trial", subject=f"{trial.record.leg}/{trial.record.trial}", text=_why_void(trial),
                number=metrics.failed_share(trial), limit=None,
                advice="It takes no part in any figure: mend the cause and run again.", severity="severe",
            )  # fmt: skip


def _why_void(trial: TrialData) -> str:
    if trial.record.void is not None:
        return trial.record.void
    if measured(trial) and not succeeded(trial):
        kinds = sorted({r.error.kind if r.error else "no token" for r in measured(trial)})
        return f"not one of {len(measured(trial))} requests was answered ({', '.join(kinds)})"
    return "too many requests failed" if measured(trial) else "no request was measured"


def incomplete_trials(case: Case) -> Iterable[Doubt]:
    """Trials that began and did not end."""
    if case.m.incomplete:
        yield Doubt(
            tag="incomplete", subject="run", text=f"{len(case.m.incomplete)} trials began and did not end",
            number=float(len(case.m.incomplete)), limit=0.0,
            advice="Run the same command again: it goes on from the first of them.", severity="warning",
        )  # fmt: skip


def other_prompts(case: Case) -> Iterable[Doubt]:
    """The same data set and seed with another workload hash: such trials do not compare."""
    hashes: dict[tuple[str, int], set[str]] = {}
    for entry in case.sheet:
        hashes.setdefault((entry.point.dataset, entry.seed), set()).add(entry.trial.record.workload_sha256)
    for (dataset, seed), found in hashes.items():
        if len(found) > 1:
            yield Doubt(
                tag="other-prompts", subject=f"{dataset}, seed {seed}",
                text=f"{len(found)} different workloads stand behind it", number=float(len(found)), limit=1.0,
                advice="Arms replayed different prompts, and nothing pairs: start a new run.", severity="severe",
            )  # fmt: skip


def no_warmup(case: Case) -> Iterable[Doubt]:
    """A sweep that measures the opening wave."""
    if case.scenario.sweep.warmup_per_user == 0:
        yield Doubt(
            tag="no-warm-up", subject="scenario", text="trials began without a warm-up", number=0.0, limit=1.0,
            advice="Set [sweep] warmup_per_user = 1: first requests after a start can take seconds.",
            severity="warning",
        )  # fmt: skip


def by_rules(case: Case) -> Iterable[Doubt]:
    """All the rules above."""
    return (doubt for rule in RULES for doubt in apply(rule, case))


CHECKS: tuple[Check, ...] = (
    void_trials, incomplete_trials, other_prompts, dirty_flush, by_rules, client_lag, few_samples,
    no_warmup,
)  # fmt: skip
