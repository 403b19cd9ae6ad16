"""Holds the stand-in kernels against plain maths; run by the CPU server's Python, which has torch and no pytest.

`python kernel_checks.py` prints one JSON object: check name -> null, or the traceback of what failed.
"""

import json
import math
import random
import sys
import traceback

import sgl_kernel
import torch
from sgl_kernel import cache, speculative, tree

HEADS, KV_HEADS, DIM, POOL = 4, 2, 8, 200
TOLERANCE = 1e-5


def a_pool(lens: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random K and V pools, and request rows 3, 5, 7, … whose positions lie scattered over the pool."""
    torch.manual_seed(seed)
    slots, table, rows = torch.randperm(POOL), torch.zeros(20, 64, dtype=torch.int32), torch.tensor([3, 5, 7, 9])
    for i, length in enumerate(lens):
        table[rows[i], :length] = slots[40 * i : 40 * i + length].int()
    return torch.randn(POOL, KV_HEADS, DIM), torch.randn(POOL, KV_HEADS, DIM), table, rows[: len(lens)]


def attention_of_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
    """[heads, dim] over [seen, kv_heads, dim], written out."""
    out = torch.zeros_like(q)
    for head in range(HEADS):
        shared = head // (HEADS // KV_HEADS)
        weights = torch.softmax(k[:, shared] @ q[head] * scaling, 0)
        out[head] = weights @ v[:, shared]
    return out


def extend(q, out, k_pool, v_pool, table, rows, lens, news, trees=None, is_causal=True):
    starts = torch.tensor([0, *torch.tensor(news).cumsum(0).tolist()[:-1]])
    torch.ops.sgl_kernel.extend_attention_cpu(
        q, None, None, out, k_pool, v_pool, 1.0, 1.0, table, rows, torch.tensor(lens), torch.tensor(news), starts,
        max(news), 0.3, 0.0, False, 0, None, None, trees, is_causal,
    )  # fmt: skip


def check_extend_is_causal_attention_over_prefix_and_new() -> None:
    for lens, news in ([9, 9], [4, 4]), ([9, 17, 5, 30], [4, 17, 1, 4]), ([6, 8, 3], [2, 0, 3]), ([12], [12]):
        k_pool, v_pool, table, rows = a_pool(lens, 1)
        q = torch.randn(sum(news), HEADS, DIM)
        out = torch.full_like(q, math.nan)
        extend(q, out, k_pool, v_pool, table, rows, lens, news)
        row = 0
        for i, (length, new) in enumerate(zip(lens, news, strict=True)):
            for nth in range(new):
                held = table[rows[i], : length - new + nth + 1].long()
                assert torch.allclose(
                    out[row], attention_of_one(q[row], k_pool[held], v_pool[held], 0.3), atol=TOLERANCE
                )
                row += 1


def check_extend_without_causality_sees_everything() -> None:
    k_pool, v_pool, table, rows = a_pool([7, 11], 2)
    q = torch.randn(4, HEADS, DIM)
    out = torch.empty_like(q)
    extend(q, out, k_pool, v_pool, table, rows, [7, 11], [2, 2], is_causal=False)
    for row, (i, length) in enumerate([(0, 7), (0, 7), (1, 11), (1, 11)]):
        held = table[rows[i], :length].long()
        assert torch.allclose(out[row], attention_of_one(q[row], k_pool[held], v_pool[held], 0.3), atol=TOLERANCE)


def check_extend_obeys_the_tree_mask() -> None:
    lens, nodes = [10, 21, 13], 5
    k_pool, v_pool, table, rows = a_pool(lens, 3)
    trees = (torch.rand(3, nodes, nodes) < 0.5).tril() | torch.eye(nodes, dtype=torch.bool)
    q = torch.randn(3 * nodes, HEADS, DIM)
    out = torch.empty_like(q)
    extend(q, out, k_pool, v_pool, table, rows, lens, [nodes] * 3, trees.flatten())
    for i, length in enumerate(lens):
        for node in range(nodes):
            before = table[rows[i], : length - nodes].tolist()
            seen = [int(table[rows[i], length - nodes + j]) for j in range(nodes) if trees[i, node, j]]
            held = torch.tensor(before + seen)
            row = i * nodes + node
            assert torch.allclose(out[row], attention_of_one(q[row], k_pool[held], v_pool[held], 0.3), atol=TOLERANCE)


def check_decode_stores_then_attends() -> None:
    lens = [5, 33, 1]
    k_pool, v_pool, table, rows = a_pool(lens, 4)
    q, k, v = torch.randn(3, HEADS, DIM), torch.randn(3, KV_HEADS, DIM), torch.randn(3, KV_HEADS, DIM)
    slots = torch.tensor([int(table[rows[i], length - 1]) for i, length in enumerate(lens)])
    out, untouched = torch.empty_like(q), k_pool.clone()
    torch.ops.sgl_kernel.decode_attention_cpu(
        q, k_pool, v_pool, 1.0, 1.0, out, k, v, slots, torch.empty(0), table, rows, torch.tensor(lens),
        0.3, 0.0, False, 0, None, None,
    )  # fmt: skip
    assert torch.equal(k_pool[slots], k) and torch.equal(v_pool[slots], v)
    assert int((k_pool != untouched).any(-1).any(-1).sum()) == len(lens)
    for i, length in enumerate(lens):
        held = table[rows[i], :length].long()
        assert torch.allclose(out[i], attention_of_one(q[i], k_pool[held], v_pool[held], 0.3), atol=TOLERANCE)


def check_what_is_not_served_is_refused() -> None:
    k_pool, v_pool, table, rows = a_pool([4], 5)
    q = torch.randn(1, HEADS, DIM)
    for k_scale, cap, window in (2.0, 0.0, 0), (1.0, 30.0, 0), (1.0, 0.0, 128):
        try:
            torch.ops.sgl_kernel.decode_attention_cpu(
                q, k_pool, v_pool, k_scale, 1.0, q.clone(), None, None, rows, q, table, rows, torch.tensor([4]),
                0.3, cap, False, window, None, None,
            )  # fmt: skip
        except NotImplementedError:
            continue
        raise AssertionError("it was served")


def a_tree(nodes: int, rng: random.Random) -> list[int]:
    return [-1, *(rng.randrange(node) for node in range(1, nodes))]


def is_above(parents: list[int], upper: int, node: int) -> bool:
    while node not in (upper, -1):
        node = parents[node]
    return node == upper


def check_links_walk_every_child_once_in_order() -> None:
    rng = random.Random(6)
    for nodes in (1, 2, 7, 16):
        parents = a_tree(nodes, rng)
        first_child, sibling = tree.links(parents)
        for node in range(nodes):
            found, child = [], first_child[node]
            while child != -1:
                found.append(child)
                child = sibling[child]
            assert found == [c for c in range(nodes) if parents[c] == node]


def build(groups: list[list[int]], chosen: list[list[int]], lens: list[int], topk: int):
    batch, nodes = len(lens), len(chosen[0]) + 1
    mask = torch.ones(batch * nodes * nodes, dtype=torch.bool)
    positions = torch.empty(batch * nodes, dtype=torch.long)
    index, child, sibling = torch.full((3, batch, nodes), -1)
    tree.build_tree_kernel_efficient_cpu(
        torch.tensor(groups), torch.tensor(chosen), torch.tensor(lens), mask, positions, index, child, sibling,
        topk, 3, nodes, tree.QLEN_ONLY,
    )  # fmt: skip
    return mask.view(batch, nodes, nodes), positions.view(batch, nodes), index, child, sibling


def check_chain_of_topk_one() -> None:
    # three steps of topk 1: candidate 1 hangs on candidate 0, candidate 2 on candidate 1
    mask, positions, index, child, sibling = build([[-1, 0, 1]] * 2, [[0, 1, 2]] * 2, [7, 20], 1)
    assert torch.equal(mask, torch.ones(2, 4, 4, dtype=torch.bool).tril())
    assert positions.tolist() == [[7, 8, 9, 10], [20, 21, 22, 23]]
    assert index.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert child.tolist() == [[1, 2, 3, -1]] * 2 and sibling.tolist() == [[-1] * 4] * 2


def check_tree_of_topk_two() -> None:
    # candidates 0, 1 on the root; 2, 3 on candidate 1; 4, 5 on candidate 0; kept: 0, 1, 3, 4
    mask, positions, _, child, sibling = build([[-1, 1, 0]], [[0, 1, 3, 4]], [10], 2)
    parents = [-1, 0, 0, 2, 1]
    assert mask[0].tolist() == [[is_above(parents, j, i) for j in range(5)] for i in range(5)]
    assert positions.tolist() == [[10, 11, 11, 12, 12]]
    assert child.tolist() == [[1, 4, 3, -1, -1]] and sibling.tolist() == [[-1, 2, -1, -1, -1]]


def check_ngram_reads_links_and_positions_back_from_masks() -> None:
    rng, batch, nodes = random.Random(7), 6, 8
    forests = [a_tree(nodes, rng) for _ in range(batch)]
    mask = torch.tensor(
        [[[is_above(parents, j, i) for j in range(nodes)] for i in range(nodes)] for parents in forests]
    )
    lens, positions = torch.arange(5, 5 + batch), torch.empty(batch * nodes, dtype=torch.long)
    index, child, sibling = torch.full((3, batch, nodes), -9)
    speculative.reconstruct_indices_from_tree_mask(mask.flatten(), lens, positions, index, child, sibling, batch, nodes)
    for b, parents in enumerate(forests):
        first_child, next_sibling = tree.links(parents)
        depth = [sum(is_above(parents, j, i) for j in range(i)) for i in range(nodes)]
        assert positions.view(batch, nodes)[b].tolist() == [5 + b + d for d in depth]
        assert child[b].tolist() == first_child and sibling[b].tolist() == next_sibling
    assert index.flatten().tolist() == list(range(batch * nodes))


def longest_match(parents: list[int], tokens: list[int], wanted: list[int], most: int) -> list[int]:
    path = [0]
    while len(path) < most:
        fitting = [c for c in range(len(parents)) if parents[c] == path[-1] and tokens[c] == wanted[path[-1]]]
        if not fitting:
            break
        path.append(fitting[0])
    return path


def check_greedy_verification_accepts_the_longest_match() -> None:
    rng, nodes, most = random.Random(8), 8, 5
    for _ in range(50):
        forests = [a_tree(nodes, rng) for _ in range(3)]
        tokens = torch.tensor([[rng.randrange(3) for _ in range(nodes)] for _ in forests])
        wanted = torch.tensor([[rng.randrange(3) for _ in range(nodes)] for _ in forests])
        linked = [tree.links(parents) for parents in forests]
        accept, number = torch.full((3, most), -1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
        predicts = torch.full((3 * nodes,), -5, dtype=torch.int32)
        tree.verify_tree_greedy_cpu(
            predicts=predicts,
            accept_index=accept,
            accept_token_num=number,
            candidates=tokens,
            retrive_index=torch.arange(3 * nodes).view(3, nodes),
            retrive_next_token=torch.tensor([child for child, _ in linked]),
            retrive_next_sibling=torch.tensor([sibling for _, sibling in linked]),
            target_predict=wanted,
        )
        for b, parents in enumerate(forests):
            path = longest_match(parents, tokens[b].tolist(), wanted[b].tolist(), most)
            assert accept[b].tolist() == [b * nodes + node for node in path] + [-1] * (most - len(path))
            assert int(number[b]) == len(path) - 1
            for node in range(nodes):
                assert int(predicts[b * nodes + node]) == (int(wanted[b, node]) if node in path else -5)


def check_slots_are_written_and_read_back() -> None:
    table, rows = torch.zeros(6, 32, dtype=torch.int32), torch.tensor([4, 1])
    starts, ends, slots = torch.tensor([2, 5]), torch.tensor([4, 9]), torch.arange(10, 16)
    cache.assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, 32)
    assert table[4, 2:4].tolist() == [10, 11] and table[1, 5:9].tolist() == [12, 13, 14, 15]
    assert int((table != 0).sum()) == 6
    back = torch.empty(6, dtype=torch.int64)
    cache.assign_extend_cache_locs_cpu(rows, table, starts, ends, back, 32)
    assert torch.equal(back, slots)
    drafts = torch.empty(4, dtype=torch.int64)
    cache.assign_draft_cache_locs_contiguous_cpu(rows, table, torch.tensor([2, 5]), drafts, 32, 1, 2)
    assert drafts.tolist() == [10, 11, 12, 13]


def check_each_branch_sees_its_own_drafts() -> None:
    table = torch.arange(64, dtype=torch.int32).view(2, 32) + 100
    made = cache.build_draft_decode_metadata_cpu(table, torch.tensor([1, 0]), torch.tensor([4, 6]), 2, 3, 32)
    row = table.tolist()
    assert made[0, :7].tolist() == row[1][:7] and made[1, :7].tolist() == row[1][:4] + row[1][7:10]
    assert made[2, :9].tolist() == row[0][:9] and made[3, :9].tolist() == row[0][:6] + row[0][9:12]
    assert torch.equal(table, torch.arange(64, dtype=torch.int32).view(2, 32) + 100)


def check_accepted_tokens_and_slots_are_packed() -> None:
    bonus = torch.zeros(2, dtype=torch.int64)
    cache.fill_bonus_tokens_cpu(torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([3, 1]), bonus, 3)
    assert bonus.tolist() == [7, 8]
    packed = torch.full((6,), -1)
    cache.fill_accept_out_cache_loc_cpu(torch.tensor([[0, 2, -1], [3, -1, -1]]), torch.arange(50, 56), packed)
    assert packed.tolist() == [50, 52, 53, -1, -1, -1]


def check_rows_move_even_where_they_overlap() -> None:
    pools = [torch.randn(8, 2, 3), torch.randn(8, 5).bfloat16()]
    before = [pool.clone() for pool in pools]
    addresses = torch.tensor([pool.data_ptr() for pool in pools])
    sizes = torch.tensor([pool[0].numel() * pool.element_size() for pool in pools])
    cache.copy_all_layer_kv_cache_cpu(addresses, sizes, torch.tensor([1, 2, 3]), torch.tensor([2, 3, 6]))
    for pool, old in zip(pools, before, strict=True):
        assert torch.equal(pool, old[[0, 2, 3, 6, 4, 5, 6, 7]])


def check_tokens_rotate_in_place() -> None:
    ids = torch.tensor([1, 2, 3, 4, 5, 6])
    cache.rotate_input_ids_cpu(ids, torch.tensor([0, 3, 4]), torch.tensor([3, 1, 2]), torch.tensor([[7], [8], [9]]))
    assert ids.tolist() == [2, 3, 7, 8, 6, 9]


def check_every_name_that_sglang_imports_is_there() -> None:
    assert all(callable(getattr(sgl_kernel, name)) for name in sgl_kernel.__all__)
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed"), "SGLang would take this for the AMX build"


def check_triton_leaves_functions_alone_and_has_every_name() -> None:
    import triton
    import triton.language as tl
    from triton.runtime.nowhere import Anything

    def kernel() -> int:
        return 1

    assert triton.jit(kernel) is kernel and triton.jit(do_not_specialize=["n"])(kernel) is kernel
    assert triton.autotune(configs=[], key=[])(kernel) is kernel and triton.heuristics({})(kernel) is kernel
    assert tl.constexpr | None and issubclass(type("Sub", (Anything,), {}), Anything)
    assert (triton.cdiv(7, 2), triton.next_power_of_2(5), triton.next_power_of_2(8)) == (4, 8, 8)


def check_sitecustomize_lets_torchvision_in_and_keeps_intel_amx() -> None:
    import types

    import sitecustomize
    import torchvision  # noqa: F401

    view = types.SimpleNamespace(attention_backend="intel_amx", device="cpu")
    other = types.SimpleNamespace(attention_backend="intel_xpu", device="xpu")

    def fall_back(given: object) -> dict[str, str]:
        return {"attention_backend": "torch_native" if given is view else "triton"}

    overrides = types.SimpleNamespace(
        _attention_backend_platform_fallbacks=fall_back, POST_PROCESS_PASSES=[print, fall_back]
    )
    sitecustomize.keep_intel_amx(overrides)
    for kept in (overrides._attention_backend_platform_fallbacks, overrides.POST_PROCESS_PASSES[1]):
        assert kept(view) == {} and kept(other) == {"attention_backend": "triton"}


def main() -> None:
    results: dict[str, str | None] = {}
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            try:
                check()
                results[name] = None
            except Exception:  # noqa: BLE001 -- every failure is reported by its test
                results[name] = traceback.format_exc()
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
