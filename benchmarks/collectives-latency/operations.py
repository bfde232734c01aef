"""The operations that are measured: one builder for each, the same for every backend.

Each operation may be called any number of times in a row and leaves the same values after every
call. Operations in place therefore reduce with MAX. `count` is the number of elements of the whole
tensor at one rank, and a part has `count // size` of them. Rank 0 is the root.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

Group = dist.ProcessGroup

# Torch renamed both functions; the oldest version that slackline supports has only the old names.
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

ROOT = 0


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation at one rank, with its tensors."""

    call: Callable[[Group], object]
    """A function that calls the operation in a group of the backend that is measured."""
    output: torch.Tensor
    """The tensor that the operation writes, overwritten with `start` before each turn.

    Empty at a rank that receives nothing.
    """
    start: torch.Tensor
    """The values of `output` before the turn; a single value stands for all elements."""
    expected: torch.Tensor
    """The values that `output` has after every call."""


def _values(rank: int, start: int, end: int) -> torch.Tensor:
    """Return the elements from `start` to `end` of a rank's tensor, small integers.

    They differ from rank to rank, and their sums are exact.
    """
    found = torch.arange(start, end, dtype=torch.int32)
    return found.remainder_(1021).add_(1024 * (rank + 1)).float()


def _sums(size: int, start: int, end: int) -> torch.Tensor:
    """Return the elements from `start` to `end` of the sum of all ranks' tensors."""
    found = _values(0, start, end)
    for rank in range(1, size):
        found += _values(rank, start, end)
    return found


def _all_parts(size: int, part: int) -> torch.Tensor:
    """Return the first `part` elements of every rank's tensor, in the order of ranks."""
    return torch.cat([_values(rank, 0, part) for rank in range(size)])


def _into(
    output: torch.Tensor, expected: torch.Tensor, call: Callable[[Group], object]
) -> Operation:
    """Return an operation that only writes `output`."""
    return Operation(call=call, output=output, start=torch.tensor(-1.0), expected=expected)


def _nothing() -> torch.Tensor:
    return torch.empty(0)


def _all_reduce(rank: int, size: int, count: int) -> Operation:
    buffer = torch.empty(count)
    return Operation(
        call=lambda group: dist.all_reduce(buffer, dist.ReduceOp.MAX, group=group),
        output=buffer,
        start=_values(rank, 0, count),
        expected=_values(size - 1, 0, count),
    )


def _reduce_scatter(rank: int, size: int, count: int) -> Operation:
    part = count // size
    source, output = _values(rank, 0, count), torch.empty(part)
    expected = _sums(size, rank * part, (rank + 1) * part)
    return _into(output, expected, lambda group: _REDUCE_SCATTER(output, source, group=group))


def _all_gather(rank: int, size: int, count: int) -> Operation:
    part = count // size
    source, output = _values(rank, 0, part), torch.empty(count)
    return _into(
        output, _all_parts(size, part), lambda group: _ALL_GATHER(output, source, group=group)
    )


def _broadcast(rank: int, size: int, count: int) -> Operation:
    buffer, expected = torch.empty(count), _values(ROOT, 0, count)
    return Operation(
        call=lambda group: dist.broadcast(buffer, ROOT, group=group),
        output=buffer,
        start=expected if rank == ROOT else torch.tensor(-1.0),
        expected=expected,
    )


def _reduce(rank: int, size: int, count: int) -> Operation:
    buffer = _values(rank, 0, count)
    # Torch does not define the other ranks' buffers afterwards, so only the root's is checked.
    return Operation(
        call=lambda group: dist.reduce(buffer, ROOT, dist.ReduceOp.MAX, group=group),
        output=buffer if rank == ROOT else _nothing(),
        start=_values(ROOT, 0, count) if rank == ROOT else _nothing(),
        expected=_values(size - 1, 0, count) if rank == ROOT else _nothing(),
    )


def _gather(rank: int, size: int, count: int) -> Operation:
    part = count // size
    source = _values(rank, 0, part)
    if rank != ROOT:
        return _into(
            _nothing(), _nothing(), lambda group: dist.gather(source, dst=ROOT, group=group)
        )
    output = torch.empty(count)
    parts = list(output.chunk(size))
    return _into(
        output,
        _all_parts(size, part),
        lambda group: dist.gather(source, parts, dst=ROOT, group=group),
    )


def _scatter(rank: int, size: int, count: int) -> Operation:
    part = count // size
    output = torch.empty(part)
    given = list(_values(ROOT, 0, count).chunk(size)) if rank == ROOT else None
    return _into(
        output,
        _values(ROOT, rank * part, (rank + 1) * part),
        lambda group: dist.scatter(output, given, src=ROOT, group=group),
    )


def _all_to_all(rank: int, size: int, count: int) -> Operation:
    part = count // size
    source, output = _values(rank, 0, count), torch.empty(count)
    mine = [_values(other, rank * part, (rank + 1) * part) for other in range(size)]
    return _into(
        output,
        torch.cat(mine),
        lambda group: dist.all_to_all_single(output, source, group=group),
    )


def _barrier(rank: int, size: int, count: int) -> Operation:
    return _into(_nothing(), _nothing(), lambda group: dist.barrier(group=group))


def _ping_pong(rank: int, size: int, count: int) -> Operation:
    """Return an operation that sends a message to the other rank of a pair, and one back.

    A rank without a partner does nothing.
    """
    peer, output, source = rank ^ 1, torch.empty(count), _values(rank, 0, count)

    def ask(group: Group) -> None:
        dist.send(source, peer, group=group)
        dist.recv(output, peer, group=group)

    def answer(group: Group) -> None:
        dist.recv(output, peer, group=group)
        dist.send(source, peer, group=group)

    if peer >= size:
        return _into(_nothing(), _nothing(), lambda group: None)
    return _into(output, _values(peer, 0, count), ask if rank < peer else answer)


OPERATIONS: Mapping[str, Callable[[int, int, int], Operation]] = {
    "all_reduce": _all_reduce,
    "reduce_scatter": _reduce_scatter,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "barrier": _barrier,
    "send and back": _ping_pong,
}
"""The builders by name: each takes the rank, the number of ranks and `count`.

mpi_collectives.c numbers the operations in the same order.
"""
