"""The target, which STANDALONE also takes as its draft."""

from sglang.srt.models.qwen3 import (  # type: ignore[import-not-found, unused-ignore]
    Qwen3ForCausalLM,
)

EntryClass = Qwen3ForCausalLM
