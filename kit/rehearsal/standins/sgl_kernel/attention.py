"""The two attention kernels of SGLang's CPU backend, as masked attention over keys gathered from the KV pool.

`req_to_token[r, p]` is the pool slot that holds position p of request row r. Sliding windows, sinks, soft caps, scaled
(FP8) pools and cross attention are refused: no rehearsal model has them.
"""

import torch  # type: ignore[import-not-found, unused-ignore]
import torch.nn.functional as functional  # type: ignore[import-not-found, unused-ignore]

EXTEND_SCHEMA = (
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) out, Tensor k_pool, Tensor v_pool, float k_scale, "
    "float v_scale, Tensor req_to_token, Tensor req_rows, Tensor seq_lens, Tensor extend_lens, Tensor extend_starts, "
    "int max_extend_len, float scaling, float logit_cap, bool is_cross, int window, Tensor? encoder_lens, "
    "Tensor? sinks, Tensor? tree_mask, bool is_causal) -> ()"
)
DECODE_SCHEMA = (
    "decode_attention_cpu(Tensor q, Tensor(a!) k_pool, Tensor(b!) v_pool, float k_scale, float v_scale, Tensor(c!) "
    "out, Tensor? k, Tensor? v, Tensor slots, Tensor scratch, Tensor req_to_token, Tensor req_rows, Tensor seq_lens, "
    "float scaling, float logit_cap, bool is_cross, int window, Tensor? encoder_lens, Tensor? sinks) -> ()"
)


def register() -> torch.library.Library:
    """Define torch.ops.sgl_kernel.{extend,decode}_attention_cpu; they live as long as the returned library."""
    library = torch.library.Library("sgl_kernel", "DEF")
    library.define(EXTEND_SCHEMA)
    library.define(DECODE_SCHEMA)
    library.impl("extend_attention_cpu", extend, "CPU")
    library.impl("decode_attention_cpu", decode, "CPU")
    return library


def extend(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    out: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    extend_starts: torch.Tensor,
    max_extend_len: int,
    scaling: float,
    logit_cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Write to `out` the attention of each request's last `extend_len` positions over all its `seq_len` positions.

    The new keys and values are in the pool already. Request b's queries are rows extend_starts[b] onwards of `q`
    [tokens, heads, dim]. `tree_mask` holds, request after request, extend_len x extend_len booleans: which new
    position sees which; what stood before them is always seen.
    """
    _refuse(k_scale, v_scale, logit_cap, is_cross, window, sinks)
    lens, extends, starts = seq_lens.tolist(), extend_lens.tolist(), extend_starts.tolist()
    tree_start = 0
    for first, after in _runs_of_equal(extends):
        new = extends[first]
        if new == 0:
            continue
        count = after - first
        rows = torch.tensor(starts[first:after])[:, None] + torch.arange(new)
        trees = None
        if tree_mask is not None:
            trees = tree_mask.flatten()[tree_start : tree_start + count * new * new].view(count, new, new).bool()
            tree_start += count * new * new
        seen = _seen(torch.tensor(lens[first:after]), new, trees, is_causal)
        slots = req_to_token[req_rows[first:after], : seen.shape[-1]]
        out[rows] = _attend(q[rows], k_pool[slots], v_pool[slots], seen, scaling)


def decode(
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    k_scale: float,
    v_scale: float,
    out: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    slots: torch.Tensor,
    scratch: torch.Tensor,
    req_to_token: torch.Tensor,
    req_rows: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
    logit_cap: float,
    is_cross: bool,
    window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Store this step's `k` and `v` (when given) at `slots`, then write each request's one-query attention to `out`.

    `seq_lens` count the new token. `scratch`, room for the real kernel's partial results, is left alone.
    """
    _refuse(k_scale, v_scale, logit_cap, is_cross, window, sinks)
    if k is not None and v is not None:
        k_pool[slots] = k.view(-1, *k_pool.shape[1:]).to(k_pool.dtype)
        v_pool[slots] = v.view(-1, *v_pool.shape[1:]).to(v_pool.dtype)
    seen = _seen(seq_lens, 1, None, True)
    held = req_to_token[req_rows, : seen.shape[-1]]
    out.copy_(_attend(q[:, None], k_pool[held], v_pool[held], seen, scaling)[:, 0])


def _refuse(
    k_scale: float, v_scale: float, logit_cap: float, is_cross: bool, window: int, sinks: torch.Tensor | None
) -> None:
    if (k_scale, v_scale) != (1.0, 1.0) or logit_cap > 0 or is_cross or window > 0 or sinks is not None:
        raise NotImplementedError(
            "kit/rehearsal stands in for plain attention: no scaled pool, soft cap, cross attention, window or sinks"
        )


def _runs_of_equal(values: list[int]) -> list[tuple[int, int]]:
    """Split into [first, after) runs of one value, so that requests of one shape share a call."""
    edges = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    return list(zip([0, *edges], [*edges, len(values)], strict=True)) if values else []


def _seen(seq_lens: torch.Tensor, new: int, trees: torch.Tensor | None, is_causal: bool) -> torch.Tensor:
    """Booleans [requests, new, longest]: which position each of a request's last `new` positions sees."""
    position = torch.arange(int(seq_lens.max()))
    before = seq_lens[:, None] - new
    if not is_causal:
        return (position < seq_lens[:, None])[:, None].expand(-1, new, -1)
    if trees is None:
        return position <= before[:, :, None] + torch.arange(new)[:, None]
    nth_new = position - before
    inside = trees.gather(2, nth_new.clamp(0, new - 1)[:, None].expand(-1, new, -1))
    return torch.where(nth_new[:, None] < 0, True, inside & (nth_new < new)[:, None])


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor, scaling: float) -> torch.Tensor:
    """Attention of [requests, new, heads, dim] over [requests, longest, kv_heads, dim], heads shared in groups."""
    mixed = functional.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.to(q.dtype).transpose(1, 2),
        v.to(q.dtype).transpose(1, 2),
        attn_mask=seen[:, None],
        scale=scaling,
        enable_gqa=q.shape[2] != k.shape[2],
    )
    return mixed.transpose(1, 2)
