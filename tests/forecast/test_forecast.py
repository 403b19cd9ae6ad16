import json
import re
from pathlib import Path

import msgspec
import pytest

from kit.forecast import Forecast, Memory, Range, forecast, memory_of, of_scenario
from kit.forecast.pool import cell_bytes, max_running, pool_from_log, pool_tokens
from kit.forecast.shapes import Facts
from kit.forecast.text import forecast_json, forecast_text
from kit.scenario import Gpu, Model, Scenario
from tests.forecast.conftest import facts_of, l4, shape_of

DRAFTS = {"Qwen/Qwen3-8B": "Tengyunw/qwen3_8b_eagle3", "Qwen/Qwen3-30B-A3B": "Tengyunw/qwen3_30b_moe_eagle3"}


def on(scenario: Scenario, memory: Memory | None = None) -> Forecast:
    assert scenario.draft
    return forecast(
        scenario, facts_of(scenario.model.path), facts_of(scenario.draft.path), memory or memory_of("L4", None)
    )


def pool(found: Forecast, arm: str) -> Range[int]:
    tokens = found.arms[arm].pool_tokens
    assert tokens
    return tokens


def test_the_l4_ranges_hold_the_articles_pools() -> None:
    found = on(l4())
    for arm, published in (("plain", 24_094), ("eagle3", 9_951), ("ngram", 24_094)):
        assert pool(found, arm).low <= published <= pool(found, arm).high
    assert found.draft_cost_mib == pytest.approx(1950, abs=1)
    assert found.draft
    assert found.draft.tokens
    assert found.draft.tokens.low <= 24_094 - 9_951 <= found.draft.tokens.high
    assert found.draft.freed_tokens == pytest.approx(8_200, abs=50)


def test_the_l4_ranges_come_from_the_cards_uncertainty_alone() -> None:
    """The width is that of the free memory (and, with a draft, of what Python may not have collected)."""
    found, free = on(l4()), memory_of("L4", None).free_gib
    width = (free.high - free.low) * 0.85 * 1024 + 48
    plain, eagle3 = pool(found, "plain"), pool(found, "eagle3")
    assert (plain.high - plain.low) * 147_456 / 2**20 == pytest.approx(width, abs=1)
    assert (eagle3.high - eagle3.low) * 151_552 / 2**20 == pytest.approx(width + 336, abs=1)


def test_requests_and_caps_on_the_l4() -> None:
    found = on(l4())
    plain, eagle3 = found.arms["plain"], found.arms["eagle3"]
    assert eagle3.requests_that_fit["random"].low <= 15 <= eagle3.requests_that_fit["random"].high
    assert "sharegpt" not in eagle3.requests_that_fit, "its lengths are not known beforehand"
    assert eagle3.max_running_requests == Range(48, 48)
    assert eagle3.capped_by_speculation
    assert plain.max_running_requests == Range(2048, 2048)
    assert eagle3.running_requests == eagle3.requests_that_fit, "the pool is tighter than the cap"


def test_a_large_pool_is_limited_by_the_cap() -> None:
    arm = on(l4(), memory_of("H200", None)).arms["eagle3"]
    assert arm.running_requests["random"] == Range(48, 48)


def test_an_asked_cap_is_no_cap_of_speculation() -> None:
    arm = on(l4(max_running_requests=8)).arms["eagle3"]
    assert arm.max_running_requests == Range(8, 8)
    assert not arm.capped_by_speculation


def test_max_total_tokens_caps_every_pool() -> None:
    found = on(l4(max_total_tokens=9_951), memory_of("H200", None))
    assert pool(found, "plain") == pool(found, "eagle3") == Range(9_951, 9_951)


def test_pages_are_whole() -> None:
    assert pool_tokens(1000 * 100 + 99, 100, page=64) == 960
    assert pool_tokens(-5, 100) == 0


def test_up_to_0_5_13_the_draft_costs_no_pool() -> None:
    found = on(l4(sglang="0.5.13.post1"))
    assert pool(found, "eagle3") == pool(found, "plain")
    assert found.draft
    assert not found.draft.counted
    assert found.draft.freed_tokens == 0


def test_up_to_0_5_9_speculation_even_adds_436_tokens() -> None:
    found = on(l4(sglang="0.5.9"))
    assert pool(found, "eagle3").low - pool(found, "plain").low == 436


def test_a_draft_loaded_into_too_little_is_said_not_to_start() -> None:
    """case 55: weights and draft that do not fit are a start that fails, told before renting."""
    assert on(l4(fraction=0.95, sglang="0.5.13")).arms["eagle3"].starts == "no"


def test_bf16_qwen3_8b_does_not_start_on_an_l4_with_the_values_of_0_5_20() -> None:
    found = on(l4(fraction=None, sglang="0.5.20"))
    assert found.arms["eagle3"].starts == "no"
    assert found.arms["plain"].starts in ("no", "cannot tell")
    assert any("--mem-fraction-static is not set" in note for note in found.arms["plain"].notes)


def test_case_56_both_arms_stand_side_by_side_with_the_loss() -> None:
    found = on(l4())
    assert found.draft
    assert found.draft.tokens
    assert found.draft.tokens.low < pool(found, "plain").high - pool(found, "eagle3").high < found.draft.tokens.high


def test_an_unknown_target_cannot_be_told_in_any_arm() -> None:
    odd = Facts(id="x", source="s", config={"architectures": ["OddForCausalLM"]})
    found = forecast(l4(), odd, facts_of("Tengyunw/qwen3_8b_eagle3"), memory_of("L4", None))
    assert {arm.starts for arm in found.arms.values()} == {"cannot tell"}
    assert all(arm.pool_tokens is None for arm in found.arms.values())
    assert found.draft_cost_mib is None
    assert "plain, eagle3, ngram: cannot tell: architecture OddForCausalLM: no rule" in forecast_text(found)


def test_an_unknown_draft_leaves_the_other_arms_told() -> None:
    odd = Facts(id="x", source="s", config={"architectures": ["OddDraft"]})
    found = forecast(l4(), facts_of("Qwen/Qwen3-8B"), odd, memory_of("L4", None))
    assert found.arms["eagle3"].cannot_tell
    assert found.arms["plain"].pool_tokens
    assert found.arms["ngram"].pool_tokens


@pytest.mark.parametrize(
    ("flags", "said"),
    [({"tp_size": 2}, "--tp-size 2"), ({"kv_cache_dtype": "fp4_e2m1"}, "fp4_e2m1"), ({"quantization": "awq"}, "awq")],
)
def test_flags_without_a_rule_cannot_be_told(flags: dict[str, str | int], said: str) -> None:
    assert said in (on(l4(**flags)).arms["plain"].cannot_tell or "")


def test_facts_that_nobody_checked_are_said() -> None:
    found = forecast(
        l4(), facts_of("Qwen/Qwen3-30B-A3B"), facts_of("Tengyunw/qwen3_30b_moe_eagle3"), memory_of("GB10", None)
    )
    assert any("not checked: intermediate_size" in note for note in found.notes)


def test_a_scenario_without_a_version_says_which_rules_it_took() -> None:
    found = on(msgspec.structs.replace(l4(), image=None))
    assert any("names no SGLang version" in note for note in found.notes)
    assert found.sglang == "not stated"


def test_json_has_the_promised_places() -> None:
    told = json.loads(forecast_json(on(l4())))
    assert set(told["arms"]["eagle3"]["pool_tokens"]) == {"low", "high"}
    assert told["draft_cost_mib"] == 1950.0
    assert told["arms"]["plain"]["draft_mib"] is None


def test_text_reads_as_it_should() -> None:
    text = forecast_text(on(l4()))
    assert "nothing was started, nothing measured" in text
    assert "The draft holds 1,950 MiB" in text
    assert "embedding 1,188" in text
    assert "caps it at 48" in text
    assert "None" not in text


def test_default_running_limits_are_those_of_the_captures() -> None:
    assert max_running(24_094, 40_960, None, speculates=False) == 2048
    assert max_running(593_914, 40_960, None, speculates=False) == 4096
    assert max_running(571_720, 40_960, None, speculates=True) == 48


def logged(path: Path) -> tuple[float, float, float, int]:
    """Avail before the first load and after the last, the share, and the pool: as the log has them."""
    text = path.read_text()
    before = re.findall(r"Load weight begin\. avail mem=([\d.]+)", text)
    after = re.findall(r"Load weight end\..*?avail mem=([\d.]+)", text)
    share = re.search(r"mem_fraction_static=([\d.]+)", text)
    tokens = re.search(r"max_total_num_tokens=(\d+)", text)
    assert share
    assert tokens
    return float(before[0]), float(after[-1]), float(share[1]), int(tokens[1])


@pytest.mark.parametrize(("log", "drafts"), [("moe-qwen3-30b-a3b", False), ("moe-eagle3-qwen3-30b-a3b", True)])
def test_pools_from_the_logged_free_memory_match_the_logged_pools(captures: Path, log: str, drafts: bool) -> None:
    before, after, share, tokens = logged(captures / f"{log}.log")
    target = shape_of("Qwen/Qwen3-30B-A3B")
    draft = shape_of("Tengyunw/qwen3_30b_moe_eagle3") if drafts else None
    assert pool_from_log(before, after, share, target, draft) == pytest.approx(tokens, rel=0.002)


@pytest.mark.parametrize(("log", "drafts"), [("plain-qwen3-8b", False), ("eagle3-qwen3-8b", True)])
def test_the_8b_logs_capped_their_pools_below_what_the_memory_gives(captures: Path, log: str, drafts: bool) -> None:
    before, after, share, tokens = logged(captures / f"{log}.log")
    target = shape_of("Qwen/Qwen3-8B")
    draft = shape_of("Tengyunw/qwen3_8b_eagle3") if drafts else None
    assert pool_from_log(before, after, share, target, draft) > tokens
    kib = re.findall(r"K size: ([\d.]+) GB", (captures / f"{log}.log").read_text())
    assert tokens * cell_bytes(target, draft) / 2**30 == pytest.approx(2 * sum(map(float, kib)), abs=0.02)


def test_the_forecast_of_the_h200_holds_the_logged_pools(captures: Path) -> None:
    scenario = l4(fraction=0.8)
    found = forecast(
        scenario, facts_of("Qwen/Qwen3-30B-A3B"), facts_of(DRAFTS["Qwen/Qwen3-30B-A3B"]), memory_of("H200", None)
    )
    for arm, log in (("plain", "moe-qwen3-30b-a3b"), ("eagle3", "moe-eagle3-qwen3-30b-a3b")):
        tokens = logged(captures / f"{log}.log")[3]
        assert pool(found, arm).low <= tokens <= pool(found, arm).high


def test_the_verb_needs_neither_weights_nor_a_card(tmp_path: Path) -> None:
    assert of_scenario(l4(), tmp_path, "L4", None) == on(l4())
    expected = msgspec.structs.replace(l4(), gpu=Gpu(expected="NVIDIA L4"))
    assert of_scenario(expected, tmp_path, "", None) == on(l4())


def test_the_verb_reads_a_model_of_the_readers_own(tmp_path: Path) -> None:
    config = {**facts_of("Qwen/Qwen3-8B").config, "num_hidden_layers": 18}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    found = of_scenario(msgspec.structs.replace(l4(), model=Model(path="mine")), tmp_path, "L4", None)
    assert found.arms["plain"].bytes_per_token == 147_456 // 2


def test_a_pool_that_is_capped_anyway_loses_nothing_to_the_draft() -> None:
    text = forecast_text(on(l4(max_total_tokens=9_951), memory_of("H200", None)))
    assert "here the draft costs no pool" in text
    assert "never come back" not in text


def test_arms_of_which_the_same_holds_share_a_line() -> None:
    assert "- eagle3, ngram: no --max-running-requests is set" in forecast_text(on(l4(), memory_of("H200", None)))
