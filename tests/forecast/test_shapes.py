import json
from pathlib import Path

import pytest

from kit.errors import UnusableInput
from kit.forecast.shapes import KNOWN, MIB, CannotTell, Tensor, count, precision, read_facts
from tests.forecast.conftest import facts_of, shape_of

GIB = 1 << 30


def test_the_article_draft_is_1950_mib_and_1188_of_them_are_freed() -> None:
    draft = shape_of("Tengyunw/qwen3_8b_eagle3")
    assert draft.weights_bytes / MIB == pytest.approx(1950, abs=1)
    assert draft.freed_bytes / MIB == pytest.approx(1188, abs=1)
    assert {t.name: t.held_bytes // MIB for t in draft.tensors} == {
        "fc": 96, "qkv": 96, "attention output": 32, "gate and up": 192, "down": 96, "lm_head": 250, "embedding": 1188,
    }  # fmt: skip


def test_the_article_pools_differ_by_exactly_that_draft() -> None:
    plain, draft = shape_of("Qwen/Qwen3-8B"), shape_of("Tengyunw/qwen3_8b_eagle3")
    assert plain.kv_bytes_per_token == 147_456
    with_draft = plain.kv_bytes_per_token + draft.kv_bytes_per_token
    assert with_draft == 151_552
    lost = (24_094 * 147_456 - 9_951 * with_draft) / MIB
    assert lost == pytest.approx(draft.weights_bytes / MIB, abs=1)


@pytest.mark.parametrize(
    ("model", "logged_gib"),
    [("Qwen/Qwen3-8B", 15.28), ("Qwen/Qwen3-30B-A3B", 56.89)],
)
def test_weights_are_what_a_server_logged(model: str, logged_gib: float) -> None:
    assert shape_of(model).weights_bytes / GIB == pytest.approx(logged_gib, abs=0.006)


@pytest.mark.parametrize(
    ("model", "logged_gib"),
    [("Tengyunw/qwen3_8b_eagle3", 2.23), ("Tengyunw/qwen3_30b_moe_eagle3", 0.94)],
)
def test_the_drafts_load_line_is_its_tensors_and_what_its_constructor_built_twice(
    model: str, logged_gib: float
) -> None:
    draft = shape_of(model)
    assert (draft.weights_bytes + draft.built_twice_bytes) / GIB == pytest.approx(logged_gib, abs=0.006)


def test_only_large_tensors_take_whole_steps() -> None:
    assert Tensor(name="large", size_bytes=11 * MIB, count=2).held_bytes == 24 * MIB
    assert Tensor(name="small", size_bytes=3 * MIB, count=2).held_bytes == 6 * MIB


def test_fp8_halves_the_linear_layers_and_not_the_embedding() -> None:
    wide, narrow = shape_of("Qwen/Qwen3-8B"), shape_of("Qwen/Qwen3-8B", quantization="fp8")
    sizes = {t.name: t.size_bytes for t in narrow.tensors}
    for tensor in wide.tensors:
        halved = tensor.name in ("qkv", "attention output", "gate and up", "down")
        assert sizes[tensor.name] == tensor.size_bytes // (2 if halved else 1)


def test_an_fp8_kv_cache_halves_the_cell() -> None:
    assert shape_of("Qwen/Qwen3-8B", **{"kv-cache-dtype": "fp8_e4m3"}).kv_bytes_per_token == 147_456 // 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture MambaForCausalLM: no rule"),
        ({"architectures": []}, "no architectures key"),
        ({"hidden_size": None}, "config.json of Qwen3ForCausalLM lacks hidden_size"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization awq"),
    ],
)
def test_what_has_no_rule_cannot_be_told(change: dict[str, object], said: str) -> None:
    config = {**facts_of("Qwen/Qwen3-8B").config, **change}
    config = {k: v for k, v in config.items() if v is not None}
    with pytest.raises(CannotTell, match=said):
        count(config, precision(config, {}, None))


def test_a_draft_without_its_own_vocabulary_gives_its_head_back_too() -> None:
    config = {k: v for k, v in facts_of("Tengyunw/qwen3_8b_eagle3").config.items() if k != "draft_vocab_size"}
    draft = count(config, precision(config, {}, None))
    assert draft.freed_bytes == 2 * 1188 * MIB


def test_a_tied_model_has_one_vocabulary_matrix() -> None:
    config = {**facts_of("Qwen/Qwen3-8B").config, "tie_word_embeddings": True}
    tied = count(config, precision(config, {}, None))
    assert shape_of("Qwen/Qwen3-8B").weights_bytes - tied.weights_bytes == 1188 * MIB


def test_a_local_folder_goes_before_the_shipped_facts(tmp_path: Path) -> None:
    config = {**facts_of("Qwen/Qwen3-8B").config, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_facts("Qwen/Qwen3-8B", tmp_path).config["num_hidden_layers"] == 1


@pytest.mark.parametrize("text", ["[]", "{", "\xff"])
def test_a_damaged_config_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UnusableInput, match=r"mine: config\.json"):
        read_facts("mine", tmp_path)


def test_an_unknown_model_says_the_way_out() -> None:
    with pytest.raises(UnusableInput, match=r"no/such: no config\.json .* kit/shapes"):
        read_facts("no/such", None)


def test_shipped_facts_are_found_by_hub_id_and_by_file_name() -> None:
    assert facts_of("qwen3-8b-eagle3") == facts_of("Tengyunw/qwen3_8b_eagle3")


def test_every_shipped_fact_names_its_source() -> None:
    paths = list(KNOWN.glob("*.json"))
    assert len(paths) == 4
    for path in paths:
        facts = json.loads(path.read_text())
        assert facts["source"]
        assert count(facts["config"], precision(facts["config"], {}, None)).weights_bytes > 0
