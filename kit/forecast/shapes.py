"""What a model weighs and what one token of its KV costs, counted from config.json. Knows no card and no server.

Tensors are counted as SGLang lays them out on one card (fused qkv, fused gate and up, fused experts). Read in SGLang
0.5.17 and 0.5.23: models/qwen3.py, qwen3_moe.py, llama_eagle3.py.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kit.errors import UnusableInput
from kit.scenario import FlagValue

MIB = 1 << 20
KNOWN = Path(__file__).parents[1] / "shapes"

# CUDACachingAllocator of PyTorch 2.x: an allocation of 10 MiB or more takes whole 2 MiB steps of its own.
LARGE_BYTES = 10 * MIB
STEP_BYTES = 2 * MIB

TWO_BYTE_TYPES = {"auto", "half", "float16", "bfloat16", "bf16"}
KV_BYTES = {"auto": 2, "bfloat16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


class CannotTell(Exception):
    """The forecast has no rule for this; the message says what is unknown. Never leaves the package."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """A model's config.json as facts: where they come from and which of them nobody has checked."""

    id: str
    source: str
    config: dict[str, Any]
    unverified: list[str] = []


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """`count` equal tensors of `size_bytes`. `freed` ones are dropped after the pools were sized."""

    name: str
    size_bytes: int
    count: int = 1
    freed: bool = False

    @property
    def held_bytes(self) -> int:
        """What the allocator takes for all of them."""
        steps = -(-self.size_bytes // STEP_BYTES) * STEP_BYTES
        return self.count * (steps if self.size_bytes >= LARGE_BYTES else self.size_bytes)


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model counted. `built_twice_bytes` are what its constructor makes and throws away: see `_eagle3`."""

    architecture: str
    tensors: tuple[Tensor, ...]
    layers: int
    kv_bytes_per_token: int
    context_tokens: int
    built_twice_bytes: int = 0

    @property
    def weights_bytes(self) -> int:
        """All weights as they are held when the pool is sized."""
        return sum(t.held_bytes for t in self.tensors)

    @property
    def freed_bytes(self) -> int:
        """What is given back once the pools have been sized."""
        return sum(t.held_bytes for t in self.tensors if t.freed)


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of an element: of plain weights, of the linear layers that quantization touches, of K and V."""

    plain: int = 2
    linear: int = 2
    kv: int = 2


def known_facts(model_id: str, folder: Path = KNOWN) -> Facts | None:
    """The facts that the kit ships for a hub id, or under the name of its file, or None."""
    for path in sorted(folder.glob("*.json")):
        facts = msgspec.json.decode(path.read_bytes(), type=Facts)
        if model_id in (facts.id, path.stem):
            return facts
    return None


def read_facts(model_id: str, model_folder: Path | None) -> Facts:
    """Facts of a model: from its local folder if there is one, else those the kit ships.

    Raises UnusableInput that names the model and the way out.
    """
    if model_folder is not None and (model_folder / "config.json").is_file():
        return _read_config(model_id, model_folder / "config.json")
    facts = known_facts(model_id)
    if facts is None:
        raise UnusableInput(
            f"{model_id}: no config.json in the models folder and no facts in kit/shapes; "
            f"put the model's config.json into a folder of that name"
        )
    return facts


def _read_config(model_id: str, path: Path) -> Facts:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UnusableInput(f"{model_id}: config.json cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise UnusableInput(f"{model_id}: config.json holds no object")
    return Facts(id=model_id, source="config.json in the model's folder", config=config)


def precision(config: dict[str, Any], flags: Mapping[str, FlagValue], quantization: str | None) -> Precision:
    """Bytes per element from config.json, --dtype, --kv-cache-dtype and a quantization; CannotTell when unknown."""
    dtype = str(flags.get("dtype", "auto"))
    if dtype in ("float", "float32"):
        plain = 4
    elif dtype in TWO_BYTE_TYPES:
        plain = 2
    else:
        raise CannotTell(f"--dtype {dtype}: no rule for its size")
    kv_type = str(flags.get("kv-cache-dtype", "auto"))
    if kv_type not in KV_BYTES:
        raise CannotTell(f"--kv-cache-dtype {kv_type}: no rule for its size")
    return Precision(
        plain=plain,
        linear=_linear_bytes(config, quantization, plain),
        kv=plain if kv_type == "auto" else KV_BYTES[kv_type],
    )


def _linear_bytes(config: dict[str, Any], quantization: str | None, plain: int) -> int:
    method = quantization or (config.get("quantization_config") or {}).get("quant_method")
    if method in (None, "unquant"):
        return plain
    if method == "fp8":
        return 1
    raise CannotTell(f"quantization {method}: no rule for the weights' size (known: none, fp8)")


def count(config: dict[str, Any], sizes: Precision) -> Shape:
    """The shape of a model from its config.json. CannotTell names an unknown architecture or a missing key."""
    names = config.get("architectures") or ["(no architectures key)"]
    rule = RULES.get(names[0])
    if rule is None:
        raise CannotTell(f"architecture {names[0]}: no rule (known: {', '.join(sorted(RULES))})")
    try:
        return rule(config, sizes)
    except KeyError as error:
        raise CannotTell(f"config.json of {names[0]} lacks {error.args[0]}") from None


def _qwen3(c: dict[str, Any], sizes: Precision) -> Shape:
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]
    inner = c["intermediate_size"]
    tensors = (
        *_attention(c, hidden, layers, sizes),
        Tensor(name="gate and up", size_bytes=2 * inner * hidden * sizes.linear, count=layers),
        Tensor(name="down", size_bytes=inner * hidden * sizes.linear, count=layers),
        *_ends(c, sizes),
    )
    return _shape(c, tensors, sizes)


def _qwen3_moe(c: dict[str, Any], sizes: Precision) -> Shape:
    if c.get("mlp_only_layers") or c.get("decoder_sparse_step", 1) != 1:
        raise CannotTell("Qwen3MoeForCausalLM with dense layers among the expert layers: no rule")
    hidden, layers = c["hidden_size"], c["num_hidden_layers"]
    experts, inner = c["num_experts"], c["moe_intermediate_size"]
    tensors = (
        *_attention(c, hidden, layers, sizes),
        Tensor(name="experts' gate and up", size_bytes=experts * 2 * inner * hidden * sizes.linear, count=layers),
        Tensor(name="experts' down", size_bytes=experts * inner * hidden * sizes.linear, count=layers),
        Tensor(name="router", size_bytes=experts * hidden * sizes.plain, count=layers),
        *_ends(c, sizes),
    )
    return _shape(c, tensors, sizes)


def _eagle3(c: dict[str, Any], sizes: Precision) -> Shape:
    """The EAGLE-3 draft on a Llama layer.

    Its embedding is replaced by the target's after the pools were sized (`set_embed`), so it costs pool and is freed.
    The class calls the constructor of a common Llama layer and then replaces that layer's qkv and MLP by its own;
    the first ones sit in a reference cycle (a parameter holds its module's loader) and keep their memory until
    Python's garbage collector runs. That is the 0.33 GB (8B) and 0.09 GB (30B-A3B) by which the draft's load line
    exceeds its tensors on the H200: 336 and 92 MiB by this count. Newer versions collect before they size the pool.
    """
    hidden, layers, inner = c["hidden_size"], c["num_hidden_layers"], c["intermediate_size"]
    vocab = c["vocab_size"]
    shares_head = c.get("draft_vocab_size") is None
    aux = len((c.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids") or []) or 3
    fused = c.get("num_aux_hidden_states") or aux
    first, *others = _attention(c, hidden, layers, sizes)
    head = Tensor(
        name="lm_head", size_bytes=(c.get("draft_vocab_size") or vocab) * hidden * sizes.plain, freed=shares_head
    )
    tensors = (
        Tensor(name="fc", size_bytes=fused * c.get("target_hidden_size", hidden) * hidden * sizes.plain),
        Tensor(name="qkv", size_bytes=2 * first.size_bytes),
        *([Tensor(name="qkv of later layers", size_bytes=first.size_bytes, count=layers - 1)] if layers > 1 else []),
        *others,
        Tensor(name="gate and up", size_bytes=2 * inner * hidden * sizes.linear, count=layers),
        Tensor(name="down", size_bytes=inner * hidden * sizes.linear, count=layers),
        *([] if c.get("tie_word_embeddings") else [head]),
        Tensor(name="embedding", size_bytes=vocab * hidden * sizes.plain, freed=True),
    )
    thrown = (first.size_bytes + 3 * inner * hidden * sizes.linear) * layers
    return msgspec.structs.replace(_shape(c, tensors, sizes), built_twice_bytes=thrown)


def _attention(c: dict[str, Any], hidden: int, layers: int, sizes: Precision) -> tuple[Tensor, ...]:
    head_dim = _head_dim(c)
    heads, kv_heads = c["num_attention_heads"], _kv_heads(c)
    qkv = (heads + 2 * kv_heads) * head_dim * hidden * sizes.linear
    return (
        Tensor(name="qkv", size_bytes=qkv, count=layers),
        Tensor(name="attention output", size_bytes=heads * head_dim * hidden * sizes.linear, count=layers),
    )


def _ends(c: dict[str, Any], sizes: Precision) -> tuple[Tensor, ...]:
    """Embedding, head, norms and the rotary cache (float32, one for all layers, held with the weights)."""
    hidden, layers, vocab = c["hidden_size"], c["num_hidden_layers"], c["vocab_size"] * c["hidden_size"] * sizes.plain
    return (
        Tensor(name="embedding", size_bytes=vocab),
        *([] if c.get("tie_word_embeddings") else [Tensor(name="lm_head", size_bytes=vocab)]),
        Tensor(name="norms", size_bytes=((2 * layers + 1) * hidden + 2 * layers * _head_dim(c)) * sizes.plain),
        Tensor(name="rotary cache", size_bytes=c["max_position_embeddings"] * _head_dim(c) * 4),
    )


def _shape(c: dict[str, Any], tensors: tuple[Tensor, ...], sizes: Precision) -> Shape:
    layers = c["num_hidden_layers"]
    return Shape(
        architecture=c["architectures"][0],
        tensors=tensors,
        layers=layers,
        kv_bytes_per_token=layers * _kv_heads(c) * _head_dim(c) * 2 * sizes.kv,
        context_tokens=c["max_position_embeddings"],
    )


def _head_dim(c: dict[str, Any]) -> int:
    return int(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])


def _kv_heads(c: dict[str, Any]) -> int:
    return int(c.get("num_key_value_heads") or c["num_attention_heads"])


RULES: dict[str, Callable[[dict[str, Any], Precision], Shape]] = {
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "LlamaForCausalLMEagle3": _eagle3,
}
