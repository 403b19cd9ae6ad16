"""Bookkeeping of KV slots and accepted tokens. `req_to_token[r, p]` is the pool slot of position p of request row r."""

import ctypes

import torch  # type: ignore[import-not-found, unused-ignore]


def assign_req_to_token_pool_cpu(
    req_rows: torch.Tensor,
    req_to_token: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    pool_len: int,
) -> None:
    """Write `slots`, request after request, to positions [start, end) of each request's row."""
    taken = 0
    for row, start, end in zip(req_rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        req_to_token[row, start:end] = slots[taken : taken + end - start].to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_rows: torch.Tensor,
    req_to_token: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    slots: torch.Tensor,
    pool_len: int,
) -> None:
    """Read positions [start, end) of each request's row into `slots`, request after request."""
    taken = 0
    for row, start, end in zip(req_rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        slots[taken : taken + end - start] = req_to_token[row, start:end].to(slots.dtype)
        taken += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_rows: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    slots: torch.Tensor,
    pool_len: int,
    topk: int,
    steps: int,
) -> None:
    """Read the topk * steps positions after each sequence into `slots`, request after request."""
    assign_extend_cache_locs_cpu(req_rows, req_to_token, seq_lens, seq_lens + topk * steps, slots, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor, req_rows: torch.Tensor, seq_lens: torch.Tensor, topk: int, steps: int, pool_len: int
) -> torch.Tensor:
    """Return a slot table [requests * topk, pool_len]: a row per branch, its sequence and then its own `steps` slots.

    Branch t of a request owns positions [seq_len + t * steps, seq_len + (t + 1) * steps) of the request's row.
    """
    table = req_to_token[req_rows].repeat_interleave(topk, dim=0)
    for branch in range(table.shape[0]):
        length, shift = int(seq_lens[branch // topk]), (branch % topk) * steps
        if shift:
            table[branch, length : length + steps] = table[branch, length + shift : length + shift + steps].clone()
    return table


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, stride: int
) -> None:
    """Copy each request's last accepted token; request b's tokens start at b * stride, accept_lens[b] of them count."""
    last = torch.arange(accept_lens.numel()) * stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.view(-1)[last])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, slots: torch.Tensor, accepted_slots: torch.Tensor
) -> None:
    """Pack the slots of the accepted rows (those that are not -1) at the front of `accepted_slots`."""
    kept = accept_index.view(-1)
    kept = kept[kept >= 0].long()
    accepted_slots[: kept.numel()] = slots[kept]


def copy_all_layer_kv_cache_cpu(
    pools: torch.Tensor, row_bytes: torch.Tensor, targets: torch.Tensor, sources: torch.Tensor
) -> None:
    """Copy rows `sources` to rows `targets` in every pool, given as addresses and bytes a row.

    All sources are read before a target is written, since the two may overlap.
    """
    moves = list(zip(targets.tolist(), sources.tolist(), strict=True))
    for address, size in zip(pools.tolist(), row_bytes.tolist(), strict=True):
        rows = [ctypes.string_at(address + source * size, size) for _, source in moves]
        for (target, _), row in zip(moves, rows, strict=True):
            ctypes.memmove(address + target * size, row, size)


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    starts: torch.Tensor,
    lens: torch.Tensor,
    new_tokens: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift each request's tokens one to the left, in place, and put its new token last (or at select_index)."""
    for b, (start, length) in enumerate(zip(starts.tolist(), lens.tolist(), strict=True)):
        if length == 0:
            continue
        input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
        input_ids[start + length - 1 if select_index is None else int(select_index[b])] = new_tokens.view(-1)[b]
