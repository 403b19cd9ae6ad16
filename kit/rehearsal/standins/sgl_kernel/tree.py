"""Draft trees: links between their nodes, building them from EAGLE's candidates, and greedy verification.

A tree of n nodes has its root (the last accepted token) at 0 and every parent before its children. Its links are
`next_token` (a node's first child) and `next_sibling`; -1 ends a list.
"""

import torch  # type: ignore[import-not-found, unused-ignore]

QLEN_ONLY = 1  # sglang.kernels.ops.speculative.spec_tree.TreeMaskMode: the one mode that SGLang's CPU path asks for


def links(parents: list[int]) -> tuple[list[int], list[int]]:
    """(next_token, next_sibling) of each node, children in ascending order; a parent of -1 means none."""
    first_child, sibling = [-1] * len(parents), [-1] * len(parents)
    for node in reversed(range(len(parents))):
        parent = parents[node]
        if parent >= 0:
            sibling[node], first_child[parent] = first_child[parent], node
    return first_child, sibling


def paths_to_root(parents: list[int]) -> list[list[int]]:
    """Each node's path to the root, itself first."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([node, *(paths[parent] if parent >= 0 else [])])
    return paths


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    seq_lens: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    nodes: int,
    mask_mode: int,
) -> None:
    """Fill the last six tensors from EAGLE's candidates.

    selected_index[b]: the nodes - 1 candidates kept, ascending. Candidate c belongs to group c // topk; group 0 hangs
    on the root, group g on candidate parent_list[b][g]. tree_mask [b, nodes, nodes]: who sees whom. positions: sequence
    length plus depth in the tree. retrieve_index: the node's row in the flat batch.
    """
    if int(mask_mode) != QLEN_ONLY:
        raise NotImplementedError(f"kit/rehearsal builds trees with QLEN_ONLY masks only, not mode {int(mask_mode)}")
    batch = seq_lens.numel()
    masks = tree_mask.view(-1)[: batch * nodes * nodes].view(batch, nodes, nodes)
    depths = positions.view(-1)[: batch * nodes].view(batch, nodes)
    groups, chosen = parent_list.view(batch, -1).tolist(), selected_index.view(batch, -1).tolist()
    retrieve_index.view(-1).copy_(torch.arange(batch * nodes))
    for b, length in enumerate(seq_lens.tolist()):
        parents = [-1, *(_parent(candidate // topk, groups[b], chosen[b]) for candidate in chosen[b])]
        paths = paths_to_root(parents)
        masks[b] = torch.tensor([[node in path for node in range(nodes)] for path in paths])
        depths[b] = torch.tensor([length + len(path) - 1 for path in paths])
        first_child, sibling = links(parents)
        retrieve_next_token[b] = torch.tensor(first_child)
        retrieve_next_sibling[b] = torch.tensor(sibling)


def _parent(group: int, group_parents: list[int], chosen: list[int]) -> int:
    return 0 if group == 0 else chosen.index(group_parents[group]) + 1


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree from its root as long as a child holds the token that the target predicts.

    accept_index[b] gets the flat rows of the nodes walked (the caller fills it with -1), accept_token_num[b] how many
    of them are draft tokens, and predicts[row] the target's token after each node walked: the last one is the bonus.
    The misspelt names are SGLang's: it passes them by keyword.
    """
    wanted, tokens = target_predict.reshape(-1).tolist(), candidates.tolist()
    rows, children, siblings = retrive_index.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist()
    most = accept_index.shape[1]
    for b in range(len(rows)):
        walked, node = [rows[b][0]], 0
        while len(walked) < most:
            node = children[b][node]
            while node != -1 and tokens[b][node] != wanted[walked[-1]]:
                node = siblings[b][node]
            if node == -1:
                break
            walked.append(rows[b][node])
        accept_index[b, : len(walked)] = torch.tensor(walked)
        accept_token_num[b] = len(walked) - 1
        for row in walked:
            predicts[row] = wanted[row]
