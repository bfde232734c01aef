"""All_reduce of sparse tensors: each rank gathers all ranks' indices and values and adds them."""

from collections.abc import Callable, Sequence

import torch

from slackline.errors import MismatchError, UsageError

__all__ = ["add_sparse"]

_MOST_DIMENSIONS = 16

Gather = Callable[[Sequence[torch.Tensor], torch.Tensor], None]


def add_sparse(tensor: torch.Tensor, rank: int, ranks: int, gather: Gather) -> None:
    """Replace a sparse COO tensor by the coalesced sum of all ranks' tensors, added in rank order.

    `gather(outputs, source)` must gather `source` of each rank into one output for each rank, of
    any lengths, and block. The number of values may differ between ranks. Raises UsageError for
    more than 16 dimensions, and MismatchError on all ranks if the tensors' shapes differ.
    """
    if tensor.dim() > _MOST_DIMENSIONS:
        raise UsageError(
            f"sparse tensors have at most {_MOST_DIMENSIONS} dimensions, not {tensor.dim()}",
            rank=rank,
        )
    mine = tensor.detach().cpu().coalesce()
    head = [mine._nnz(), mine.sparse_dim(), mine.dense_dim(), *mine.shape]
    padding = [-1] * (3 + _MOST_DIMENSIONS - len(head))
    padded = torch.tensor(head + padding, dtype=torch.int64, device="cpu")
    heads = [torch.empty_like(padded) for _ in range(ranks)]
    gather(heads, padded)
    for peer, other in enumerate(heads):
        if not torch.equal(other[1:], padded[1:]):
            theirs = tuple(size for size in other[3:].tolist() if size >= 0)
            raise MismatchError(
                f"sparse tensors must have one shape on all ranks, not {tuple(mine.shape)} with "
                f"{head[1]} sparse dimensions here and {theirs} with {int(other[1])} at rank "
                f"{peer}",
                rank=rank,
                peer=peer,
            )
    counts = [int(other[0]) for other in heads]
    values = mine.values()
    all_indices = [
        torch.empty(mine.sparse_dim(), count, dtype=torch.int64, device="cpu") for count in counts
    ]
    all_values = [values.new_empty(count, *values.shape[1:]) for count in counts]
    gather(all_indices, mine.indices().contiguous())
    gather(all_values, values.contiguous())
    # torch 2.11 warns in torch.sparse_coo_tensor of checks that are off, even with
    # check_invariants=False; the operator that the function calls does not.
    parts = [
        torch.ops.aten._sparse_coo_tensor_unsafe(indices, part, mine.shape, is_coalesced=True)
        for indices, part in zip(all_indices, all_values, strict=True)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    with torch.no_grad():
        tensor.copy_(total.coalesce())
