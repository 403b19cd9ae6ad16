"""The EAGLE3 draft."""

from sglang.srt.models.llama_eagle3 import (  # type: ignore[import-not-found, unused-ignore]
    LlamaForCausalLMEagle3,
)

EntryClass = LlamaForCausalLMEagle3
