"""What SGLang printed on real servers, trimmed: four versions, CPU and H200, with and without a draft."""

import json
from pathlib import Path
from typing import Any

import pytest

from kit.sglang import api, log, versions

FIXTURES = Path(__file__).parent.parent / "fixtures" / "sglang"
LIMIT_LINE = (
    "max_total_num_tokens={tokens}, chunked_prefill_size=2048, max_prefill_tokens=16384, "
    "max_running_requests={running}, context_len=40960, available_gpu_mem=0.93 GB"
)


def text(name: str) -> str:
    return (FIXTURES / f"{name}.log").read_text()


def info(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FIXTURES / f"info-{name}.json").read_text())
    return loaded


def at(version: str) -> dict[str, Any]:
    return {"version": version}


@pytest.mark.parametrize(
    ("name", "version", "pools", "running", "dtype"),
    [
        ("plain-cpu-0.5.6", "0.5.6", [("target", 20000)], 16, None),
        ("plain-cpu-0.5.12", "0.5.12", [("target", 20000)], 16, None),
        ("plain-h200-0.5.17", "0.5.17", [("target", 24094)], 2048, "bfloat16"),
        ("ngram-h200-0.5.17", "0.5.17", [("target", 24094)], 48, "bfloat16"),
        ("eagle3-h200-0.5.17", "0.5.17", [("target", 9951), ("draft", 9951)], 48, "bfloat16"),
        ("moe-eagle3-h200-0.5.17", "0.5.17", [("target", 571720), ("draft", 571720)], 48, "bfloat16"),
        ("plain-cpu-0.5.23", "0.5.23", [("target", 20000)], 16, "bfloat16"),
        ("eagle3-cpu-0.5.23", "0.5.23", [("target", 20000), ("draft", 20000)], 16, "bfloat16"),
        ("ngram-cpu-0.5.23", "0.5.23", [("target", 20000)], 16, "bfloat16"),
    ],
)
def test_case_65_each_known_version_is_read_exactly(
    name: str, version: str, pools: list[tuple[str, int]], running: int, dtype: str | None
) -> None:
    facts = api.facts(text(name), at(version))
    assert [(pool.role, pool.tokens) for pool in facts.pools] == pools
    assert facts.pool_tokens == pools[0][1]
    assert facts.max_running_requests == running
    assert facts.kv_dtype == dtype
    assert facts.mismatches == []
    assert not facts.unknown_version
    assert len(facts.loads) == len(pools)
    assert facts.load_format == "dummy"
    row = versions.find(version)
    assert row is not None
    assert row.kv_line_dtype == (dtype is not None)


def test_the_eagle3_server_on_the_h200() -> None:
    facts = api.facts(text("eagle3-h200-0.5.17"), info("eagle3-h200-0.5.17"), {"SGLANG_SIMULATE_ACC_LEN": "2.73"})
    target, draft = facts.pools
    assert (target.k_gib, target.v_gib, draft.k_gib, draft.v_gib) == (0.68, 0.68, 0.02, 0.02)
    assert [(load.model_type, load.memory_gib) for load in facts.loads] == [
        ("Qwen3ForCausalLM", 15.28),
        ("LlamaForCausalLMEagle3", 2.23),
    ]
    assert [(graph.name, graph.seconds, graph.memory_gib) for graph in facts.graphs] == [
        ("target verify", 2.81, 0.32),
        ("draft decode", 2.33, 0.14),
    ]
    assert facts.graph_max_batch == 48
    assert facts.cap_warning
    assert facts.max_running_requests_asked is None  # the cap of 48 was not asked for, whatever /server_info says
    assert facts.max_total_tokens_asked == 9951
    assert facts.forced_accept_length == 2.73
    assert (facts.algorithm, facts.draft_steps, facts.draft_tokens) == ("EAGLE3", 3, 4)
    assert api.avg_accept_length(info("eagle3-h200-0.5.17")) == pytest.approx(2.728272)


def test_asked_running_requests_are_told_from_a_default() -> None:
    assert api.facts(text("plain-h200-0.5.17"), at("0.5.17")).max_running_requests_asked is None
    asked = api.facts(text("ngram-cpu-0.5.23"), info("ngram-cpu-0.5.23"))
    assert (asked.max_running_requests_asked, asked.cap_warning) == (16, False)


def test_an_unknown_version_is_read_by_the_stable_line_and_says_so() -> None:
    line = "[2027-01-01 00:00:00] " + LIMIT_LINE.format(tokens=12345, running=48)
    facts = api.facts(f"some new KV wording\n{line}\n", at("0.6.1"))
    assert (facts.pool_tokens, facts.max_running_requests, facts.pools) == (12345, 48, [])
    assert facts.unknown_version
    assert facts.mismatches == []


def test_a_post_release_is_its_release() -> None:
    row = versions.find("0.5.12.post1")
    assert row is not None
    assert row.release == "0.5.12"
    assert versions.find("0.5.120") is None
    assert versions.find(None) is None


def test_case_63_ranks_are_counted_once_and_multiplied_by_the_data_parallel_size() -> None:
    lines = []
    for rank in ("DP0 TP0", "DP1 TP0"):
        prefix = f"[2026-11-30 08:10:15 {rank}] "
        lines.append(prefix + "KV Cache is allocated. #tokens: 5000, K size: 0.68 GB, V size: 0.68 GB")
        lines.append(prefix + "KV Cache is allocated. #tokens: 5000, K size: 0.02 GB, V size: 0.02 GB")
        lines.append(prefix + LIMIT_LINE.format(tokens=5000, running=6))
    facts = api.facts("\n".join(lines), {"version": "0.5.12", "dp_size": 2})
    assert [pool.role for pool in facts.pools] == ["target", "draft"]
    assert (facts.pool_tokens, facts.max_running_requests) == (10000, 12)
    assert api.facts("\n".join(lines), {}).pool_tokens == 10000


def test_ranks_with_different_pools_are_a_mismatch() -> None:
    lines = [f"[2026-11-30 08:10:15 DP{rank}] " + LIMIT_LINE.format(tokens=5000 + rank, running=6) for rank in (0, 1)]
    assert "different sizes" in " ".join(api.facts("\n".join(lines), at("0.5.17")).mismatches)


def test_mla_and_hybrid_lines() -> None:
    start = "[2026-11-30 08:10:15] "
    mla = log.read_startup(
        start + "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 700, KV size: 1.50 GB\n"
    )
    assert [(pool.kv_gib, pool.dtype, pool.k_gib) for pool in mla.pools] == [(1.5, "float8_e4m3fn", None)]
    hybrid = log.read_startup(
        start + "Full KV Cache is allocated. dtype: torch.bfloat16, #tokens: 700, K size: 1.50 GB, V size: 1.50 GB\n"
        + start + "SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 560, K size: 0.50 GB, V size: 0.50 GB\n"
        + start + "KV Cache is allocated. dtype: torch.bfloat16, #tokens: 700, K size: 0.02 GB, V size: 0.02 GB\n"
    )  # fmt: skip
    assert [(pool.role, pool.tokens) for pool in hybrid.pools] == [("target", 700), ("target", 560), ("draft", 700)]


def test_graph_lines_of_the_older_form() -> None:
    start = "[2026-11-30 08:10:15 TP0] "
    startup = log.read_startup(
        start + "Capture cuda graph begin. This can take up to several minutes. avail mem=1.50 GB\n"
        + start + "Capture cuda graph bs [1, 2, 4, 8, 16, 24]\n"
        + start + "Capture cuda graph end. Time elapsed: 3.20 s. mem usage=0.30 GB. avail mem=1.20 GB.\n"
        + start + "Capture draft cuda graph end. Time elapsed: 1.10 s. mem usage=0.10 GB. avail mem=1.10 GB.\n"
    )  # fmt: skip
    assert [(graph.name, graph.batch_sizes, graph.seconds) for graph in startup.graphs] == [
        ("target", [1, 2, 4, 8, 16, 24], 3.2),
        ("draft", [], 1.1),
    ]


def test_log_and_answer_that_differ_are_named() -> None:
    differing = info("eagle3-h200-0.5.17") | {"max_total_num_tokens": 24094}
    facts = api.facts(text("eagle3-h200-0.5.17"), differing)
    assert facts.mismatches == ["max_total_num_tokens: the log says 9951, /server_info 24094"]


def test_an_empty_log_leaves_none_and_says_so() -> None:
    facts = api.facts("", {})
    assert (facts.pool_tokens, facts.max_running_requests, facts.version) == (None, None, None)
    assert facts.unknown_version
    assert len(facts.mismatches) == 2


def test_without_a_log_the_answer_is_used_and_the_gap_is_named() -> None:
    facts = api.facts("", info("eagle3-h200-0.5.17"))
    assert (facts.pool_tokens, facts.max_running_requests) == (9951, 48)
    assert "the log does not say max_total_num_tokens" in facts.mismatches


def test_case_35_several_ranks_give_no_accept_length_and_37_missing_is_none() -> None:
    assert api.avg_accept_length({"internal_states": [{"avg_spec_accept_length": 2.0}, {}]}) is None
    assert api.avg_accept_length({"internal_states": [{}]}) is None
    assert api.avg_accept_length({}) is None


# ---- a trial's slice --------------------------------------------------------------------------------------------


def test_counts_of_a_trial_with_a_full_pool_and_retractions() -> None:
    counts = log.counts(text("eagle3-h200-0.5.17").split(log.READY)[1], has_graphs=True)
    assert counts.retracted_requests == 2
    assert counts.max_running == 16
    assert counts.max_queue == 49
    assert counts.max_token_usage == 0.98
    assert counts.decode_lines == 61
    assert counts.eager_decode_lines == 0
    assert counts.cached_tokens == 0
    assert not counts.compiled


@pytest.mark.parametrize("name", ["plain-cpu-0.5.6", "plain-cpu-0.5.12", "eagle3-cpu-0.5.23"])
def test_a_server_without_graphs_has_no_eager_steps(name: str) -> None:
    counts = log.counts(text(name).split(log.READY)[1], has_graphs=False)
    assert counts.decode_lines > 0
    assert counts.eager_decode_lines == 0
    assert counts.max_running == 4


def test_steps_above_the_largest_graph_are_eager() -> None:
    line = "[t] Decode batch, #running-req: {n}, #token: 9, token usage: 0.10, cuda graph: {g}, #queue-req: 3"
    slice_ = "\n".join([line.format(n=48, g=True), line.format(n=60, g=False)])
    counts = log.counts(slice_, has_graphs=True)
    assert (counts.decode_lines, counts.eager_decode_lines, counts.mean_running, counts.mean_queue) == (2, 1, 54, 3)


def test_nothing_logged_is_none_not_zero() -> None:
    counts = log.counts("", has_graphs=True)
    assert (counts.max_running, counts.mean_queue, counts.cached_tokens) == (None, None, None)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-30 08:10:15] Entering DeepGEMM JIT Single Kernel Session.",
        "[2026-11-30 08:10:15] Capture target verify CUDA graph begin. backend=full, bs=[64], avail mem=2.00 GB",
        "[2026-11-30 08:10:15 TP0] flashinfer.jit: Loading JIT ops: batch_prefill",
        "[1/3] nvcc -c kernel.cu",
    ],
)
def test_case_28_compilation_in_a_trial_is_seen(line: str) -> None:
    assert log.counts(f"{line}\n", has_graphs=True).compiled


def test_the_real_logs_after_the_start_show_no_compilation() -> None:
    for path in FIXTURES.glob("*.log"):
        assert not log.counts(path.read_text().split(log.READY)[1], has_graphs=True).compiled, path.name
