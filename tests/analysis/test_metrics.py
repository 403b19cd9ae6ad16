"""The definitions, on requests small enough to count by hand; field cases by their number."""

from collections.abc import Sequence

import pytest

from kit.analysis import metrics
from kit.analysis.chunks import Chunks
from kit.analysis.metrics import BY_TAG, METRICS
from kit.measurements import (
    ClientWatch,
    Flush,
    GpuSample,
    LogCounts,
    RequestError,
    RequestRecord,
    SpecCounters,
    TrialData,
    TrialRecord,
)


def request(
    chunks: Sequence[tuple[float, int]] = ((1.0, 1), (1.1, 2), (1.5, 1)), sent: float = 0.8, **fields: object
) -> RequestRecord:
    known: dict[str, object] = {
        "index": 0, "sent_s": sent, "chunks": list(chunks), "first_text_s": chunks[0][0] if chunks else None,
        "done_s": chunks[-1][0] if chunks else None, "prompt_tokens": 10,
        "completion_tokens": sum(n for _, n in chunks), "cached_tokens": 0, "retractions": 0,
    }  # fmt: skip
    return RequestRecord(**{**known, **fields})  # type: ignore[arg-type]


FAILED = request((), error=RequestError(kind="http_status", detail="503"), completion_tokens=None)


def trial(*requests: RequestRecord, gpu: Sequence[GpuSample] = (), **fields: object) -> TrialData:
    known: dict[str, object] = {
        "trial": "own-c0001-s1", "leg": "b1-1-plain", "arm": "plain", "dataset": "own", "concurrency": 1, "seed": 1,
        "requests": len(requests), "workload_sha256": "", "server_start": 1, "started_unix_s": 0.0,
        "zero_monotonic_s": 100.0, "flush": Flush(tries=1, status=200, seconds=0.0), "watch": ClientWatch(),
        "log": LogCounts(),
    }  # fmt: skip
    return TrialData(TrialRecord(**{**known, **fields}), list(requests), list(gpu), 1)  # type: ignore[arg-type]


def value(tag: str, *requests: RequestRecord, **fields: object) -> float | None:
    return metrics.value(BY_TAG[tag], trial(*requests, **fields))


def test_the_registry_is_whole() -> None:
    assert len(BY_TAG) == len(METRICS)
    for metric in METRICS:
        assert [metric.trial, metric.request, metric.chunks].count(None) == 2, metric.tag
        assert metric.definition.endswith("."), metric.tag
        assert not metric.compared or metric.better != "neither", metric.tag


def test_ttft_is_from_sent_to_the_first_chunk_with_tokens() -> None:
    assert value("ttft_p50_ms", request()) == pytest.approx(200)


def test_case_17_role_only_chunk_is_no_first_token() -> None:
    """Chunks hold only what carried tokens; SGLang's own TTFT waits for text and may come later."""
    assert value("ttft_text_p50_ms", request(first_text_s=1.1)) == pytest.approx(300)
    assert value("ttft_text_p50_ms", request(first_text_s=None)) is None


def test_case_18_reasoning_tokens_are_generated_tokens() -> None:
    assert value("ttft_p50_ms", request(reasoning_tokens=3, first_text_s=1.5)) == pytest.approx(200)


def test_case_07_tpot_is_per_token_and_not_per_chunk() -> None:
    assert value("tpot_p50_ms", request()) == pytest.approx(500 / 3)


def test_tpot_leaves_out_all_tokens_of_the_first_chunk() -> None:
    assert value("tpot_p50_ms", request(((1.0, 3), (1.4, 2)))) == pytest.approx(200)


def test_an_answer_of_one_chunk_has_no_tpot_and_no_gap() -> None:
    one = request(((1.0, 4),))
    assert value("tpot_p50_ms", one) is None
    assert value("gap_longest_p99_ms", one) is None
    assert value("output_throughput_tok_s", one) == pytest.approx(4 / 0.2)


def test_case_01_per_token_itl_agrees_with_sglangs_tpot() -> None:
    r = request(((1.0, 1), (1.4, 4), (1.8, 4)))
    assert value("itl_sglang_p50_ms", r) == pytest.approx(100)
    assert value("tpot_sglang_mean_ms", r) == pytest.approx(100)


def test_case_02_each_gap_is_divided_by_its_own_chunk() -> None:
    """Three tokens at 10 ms and one at 100 ms: a mean accept length of 2 would make the tail 50 ms."""
    slow = request(((1.0, 1), (1.03, 3), (1.13, 1)))
    found = metrics.values(BY_TAG["itl_sglang_p99_ms"], trial(slow), Chunks([slow]))
    assert found.tolist() == pytest.approx([10, 10, 10, 100])


def test_case_08_stalls_show_in_the_gap_and_not_in_tpot() -> None:
    steady = request([(1.0 + 0.01 * i, 1) for i in range(101)])
    stalled = request([(1.0 + 0.005 * i + (0.5 if i > 50 else 0), 1) for i in range(101)])
    assert value("tpot_p99_ms", steady) == pytest.approx(value("tpot_p99_ms", stalled))
    assert value("gap_longest_p99_ms", stalled) == pytest.approx(505)


def test_case_09_gap_and_tpot_are_two_things_under_speculation() -> None:
    r = request(((1.0, 1), (1.4, 4), (1.8, 4)))
    assert value("gap_longest_p50_ms", r) == pytest.approx(400)
    assert value("tpot_p50_ms", r) == pytest.approx(100)


def test_output_throughput_is_first_sent_to_last_token() -> None:
    first, second = request(sent=0.5), request(((2.0, 1), (2.5, 3)), sent=1.0, done_s=9.0)
    assert value("output_throughput_tok_s", first, second) == pytest.approx(8 / 2.0)


def test_case_03_the_peak_is_never_below_the_average() -> None:
    for times in ([0.9], [0.1, 0.2, 1.9], [0.5 * i for i in range(1, 8)], [0.01, 2.5]):
        t = trial(request([(x, 4) for x in times], sent=0.0))
        peak = metrics.value(BY_TAG["peak_throughput_tok_s"], t)
        average = metrics.value(BY_TAG["output_throughput_tok_s"], t)
        assert peak is not None and average is not None and peak >= average * (1 - 1e-12)


def test_case_10_and_11_without_usage_token_metrics_are_not_available() -> None:
    uncounted = request(completion_tokens=None)
    assert value("output_throughput_tok_s", request(), uncounted) is None
    assert value("tpot_p50_ms", uncounted) is None
    assert value("ttft_p50_ms", uncounted) == pytest.approx(200)


def test_case_15_the_servers_count_stands_before_the_chunks() -> None:
    assert value("output_throughput_tok_s", request(completion_tokens=7)) == pytest.approx(7 / 0.7)


def test_case_14_failures_are_left_out_and_shown() -> None:
    assert value("ttft_p50_ms", request(), FAILED) == pytest.approx(200)
    assert value("failed_share", request(), FAILED) == 0.5


def test_case_53_only_failures_give_nothing_but_the_failed_share() -> None:
    t = trial(FAILED, FAILED)
    assert {m.tag for m in METRICS if metrics.value(m, t) is not None} == {"failed_share"}


def test_case_25_warm_ups_are_not_looked_at() -> None:
    warm = request(((50.0, 1), (60.0, 1)), sent=0.0, warmup=True)
    assert value("ttft_p99_ms", warm, request()) == pytest.approx(200)
    assert value("output_throughput_tok_s", warm, request()) == pytest.approx(4 / 0.7)


def spec(steps: int, correct: int | None = None) -> SpecCounters:
    return SpecCounters(verify_steps=steps, correct_drafts=correct)


def test_case_35_and_39_accept_length_is_emitted_tokens_over_own_verify_steps() -> None:
    """Six drafts claimed but three tokens emitted: what was not emitted does not count."""
    assert value("accept_length", request(spec=spec(1, 6))) == 3.0
    long = request([(1.0, 1)] + [(1.1 + i, 2) for i in range(8)], spec=spec(8, 8))
    assert value("accept_length", long, request(spec=spec(1, 6))) == pytest.approx((16 + 3) / 9)
    assert value("accept_length_strict", long) == 2.0


def test_case_37_a_missing_counter_is_no_accept_length_of_one() -> None:
    assert value("accept_length", request()) is None
    assert value("accept_length_strict", request(spec=SpecCounters(verify_steps=3))) is None


def test_case_44_steps_are_counted_and_not_multiplied_by_a_width() -> None:
    assert value("accept_length", request(((1.0, 1), (1.1, 7)), spec=spec(2))) == 3.5


def test_accept_length_leaves_retracted_requests_apart() -> None:
    assert value("accept_length", request(spec=spec(1)), request(spec=spec(9), retractions=1)) == 3.0


def test_retractions_are_unknown_when_nothing_counts_them() -> None:
    assert value("retractions", request(retractions=None)) is None
    assert value("retractions", request(retractions=None), log=LogCounts(decode_lines=3, retracted_requests=2)) == 2


def test_case_29_the_cached_share_is_known() -> None:
    assert value("cached_share", request(cached_tokens=5), request()) == 0.25
    assert value("cached_share", request(cached_tokens=None)) is None


def test_case_46_realised_lengths_are_the_servers() -> None:
    assert value("prompt_tokens", request(), request(prompt_tokens=20)) == 15
    assert value("completion_tokens", request()) == 4


def test_case_20_the_wait_before_sending_is_known() -> None:
    assert value("queued_p99_ms", request(scheduled_s=0.3)) == pytest.approx(500)


def test_energy_is_over_the_same_window_as_throughput() -> None:
    samples = [GpuSample(monotonic_s=100 + 0.1 * i, index=0, power_w=200.0) for i in range(20)]
    found = metrics.value(BY_TAG["joules_per_token"], trial(request(), gpu=samples))
    assert found == pytest.approx(200 * 0.7 / 4)
    assert value("joules_per_token", request()) is None


def test_a_trial_without_requests_has_no_metric() -> None:
    assert [m.tag for m in METRICS if metrics.value(m, trial()) is not None] == []
