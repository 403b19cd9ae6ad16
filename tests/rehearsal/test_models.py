"""The rehearsal models: the same bytes every time, and able to say anything."""

import json
import subprocess
from pathlib import Path

from kit.rehearsal import CpuServer
from kit.rehearsal.environment import HERE
from kit.rehearsal.make_models import CONTEXT_TOKENS, MODELS, SHARED

ROUND_TRIP = """
import sys
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
for text in ("a fox", "größer, 漢字 🦊", "\\x00\\t  two  spaces\\n"):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text, text
assert [tokenizer.id_to_token(i) for i in range(3)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
"""


def test_made_twice_they_are_the_same_bytes(cpu_server: CpuServer, tmp_path: Path) -> None:
    script = str(HERE / "make_models.py")
    subprocess.run([str(cpu_server.python), script, str(tmp_path / "again")], check=True, timeout=60)
    made = sorted(p.relative_to(cpu_server.models) for p in cpu_server.models.rglob("*") if p.is_file())
    assert len(made) == 4 * len(MODELS)
    for file in made:
        assert (tmp_path / "again" / file).read_bytes() == (cpu_server.models / file).read_bytes(), file


def test_any_text_survives_the_tokenizer(cpu_server: CpuServer) -> None:
    tokenizer = cpu_server.models / "tiny-qwen3" / "tokenizer.json"
    subprocess.run([str(cpu_server.python), "-c", ROUND_TRIP, str(tokenizer)], check=True, timeout=60)


def test_the_draft_reads_layers_that_the_target_has() -> None:
    layers = MODELS["tiny-eagle3"]["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    # SGLang takes what goes into the layer after the one named
    assert max(layers) + 1 < MODELS["tiny-qwen3"]["num_hidden_layers"]
    assert MODELS["tiny-eagle3"]["draft_vocab_size"] == SHARED["vocab_size"]
    assert SHARED["max_position_embeddings"] == CONTEXT_TOKENS >= 4096


def test_the_configuration_on_disk_is_plain_json(cpu_server: CpuServer) -> None:
    config = json.loads((cpu_server.models / "tiny-qwen3" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
