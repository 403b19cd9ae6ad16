"""Writes the rehearsal models; run by the rehearsal server's Python: `python make_models.py FOLDER`.

Both are configurations and a tokenizer, without weights: the server fills them at random (`--load-format dummy`). The
target is the smallest Qwen3 that EAGLE3 can read three layers of; the draft is one layer that shares its vocabulary.
"""

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 512
CONTEXT_TOKENS = 4096
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SHARED: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT_TOKENS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
    "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
}
MODELS: dict[str, dict[str, Any]] = {
    "tiny-qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": 4},
    "tiny-eagle3": {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "mlp_bias": False,
        "draft_vocab_size": VOCABULARY,
        # SGLang's own choice of layers (2, half, last but three) needs more layers than a tiny target has.
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    },
}


def train_tokenizer(lines: list[str]) -> str:
    """Return tokenizer.json of a byte-level BPE: any text encodes, and decodes to itself."""
    from tokenizers import (  # type: ignore[import-not-found, unused-ignore]
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return str(tokenizer.to_str(pretty=True))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write one JSON file with sorted keys, so that the same models are the same bytes."""
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def write_model(folder: Path, tokenizer: str, config: dict[str, Any]) -> None:
    """Write one model folder."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", SHARED | config)
    write_json(folder / "generation_config.json", {"eos_token_id": 2, "pad_token_id": 0, "do_sample": False})
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": CONTEXT_TOKENS,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")


def main(folder: Path) -> None:
    """Write every model of MODELS under `folder`."""
    tokenizer = train_tokenizer(Path(__file__).with_name("corpus.txt").read_text(encoding="utf-8").splitlines())
    for name, config in MODELS.items():
        write_model(folder / name, tokenizer, config)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
