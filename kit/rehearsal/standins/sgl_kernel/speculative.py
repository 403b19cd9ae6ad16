"""NGRAM's half of the tree kernels: links and positions read back from a mask."""

import torch  # type: ignore[import-not-found, unused-ignore]

from .tree import links


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    batch: int,
    nodes: int,
) -> None:
    """Fill positions and links from tree_mask [batch, nodes, nodes], whose [b, i, j] says that j is above i or is i.

    A node's parent is the last node above it; its position is the sequence length plus how many stand above it.
    """
    trees = tree_mask.view(-1)[: batch * nodes * nodes].view(batch, nodes, nodes).tolist()
    retrieve_index.view(-1)[: batch * nodes] = torch.arange(batch * nodes)
    for b, length in enumerate(seq_lens.tolist()):
        above = [[j for j in range(i) if seen[j]] for i, seen in enumerate(trees[b])]
        first_child, sibling = links([nodes_above[-1] if nodes_above else -1 for nodes_above in above])
        positions[b * nodes : (b + 1) * nodes] = torch.tensor([length + len(nodes_above) for nodes_above in above])
        retrieve_next_token[b] = torch.tensor(first_child)
        retrieve_next_sibling[b] = torch.tensor(sibling)
