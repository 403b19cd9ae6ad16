"""Stand-in for the CPU build of sgl-kernel, in plain torch: what a dense model with EAGLE3, STANDALONE or NGRAM calls.

It shows SGLang's API, logs and accounting on any CPU. It says nothing about speed or about the real kernels.
Names, argument order and what is written where follow the call sites in SGLang 0.5.23; every other name is absent.
"""

from . import attention
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu

__version__ = "0.0.0+rehearsal"
__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

# SGLang looks the two attention kernels up as torch.ops.sgl_kernel.*, so importing this package has to register them.
OPERATORS = attention.register()
