"""The arithmetic of the KV pool, as SGLang does it when a server starts. Pure; knows neither scenarios nor files.

Read in SGLang 0.5.17 (`kv_cache_configurator.py`, `pool_configurator.py`): the pool's budget is what is free after
loading, less the share of the memory before loading that --mem-fraction-static leaves; a token costs the target's
cell, and with an EAGLE or STANDALONE draft the draft's layers at the target's cost per layer.
"""

from kit.forecast.memory import DRAFT_COUNTED, Version
from kit.forecast.shapes import Shape

GIB = 1 << 30
SPECULATIVE_CAP = 48
DRAFTING = {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"}


def cell_bytes(target: Shape, draft: Shape | None) -> int:
    """Bytes of pool that one token takes, the draft's layers included."""
    cell = target.kv_bytes_per_token
    return cell if draft is None else cell + int(cell * draft.layers / target.layers)


def budget_bytes(before_gib: float, after_gib: float, fraction: float) -> int:
    """What the pools may take: free after loading, less the part of the memory before loading that stays free."""
    return int((after_gib - before_gib * (1 - fraction)) * GIB)


def pool_tokens(budget: int, cell: int, page: int = 1, cap: int | None = None) -> int:
    """Tokens that a budget holds, in whole pages; `cap` is --max-total-tokens. Never below 0."""
    tokens = max(budget, 0) // cell
    return (tokens if cap is None else min(tokens, cap)) // page * page


def pool_from_log(before_gib: float, after_gib: float, fraction: float, target: Shape, draft: Shape | None) -> int:
    """The pool that a start-up log's own figures lead to.

    `before_gib` is `avail mem` of the first "Load weight begin", `after_gib` that of the last "Load weight end".
    """
    return pool_tokens(budget_bytes(before_gib, after_gib, fraction), cell_bytes(target, draft))


def max_running(pool: int, context_tokens: int, asked: int | None, speculates: bool) -> int:
    """Requests that run at once as far as the scheduler's cap goes: asked for, 48 with speculation, or the default."""
    if asked is None and speculates:
        asked = SPECULATIVE_CAP
    by_default = max(min(int(pool / context_tokens * 512), 4096), 2048)
    return min(by_default if asked is None else asked, pool // 2)


def extra_tokens(version: Version, running: int, steps: int, topk: int, draft_tokens: int) -> int:
    """Up to 0.5.9 SGLang added room for one step's drafts to the pool that it had sized."""
    return running * (steps * topk + draft_tokens) + 100 if version <= (0, 5, 9) else 0


def counts_draft(version: Version) -> bool:
    """Whether the pools are sized after the draft is loaded (0.5.14 and later)."""
    return version >= DRAFT_COUNTED
