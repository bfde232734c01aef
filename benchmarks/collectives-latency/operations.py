"""The operations that are measured: one builder for each, the same for every backend.

Each operation may be called any number of times in a row and leaves the same values after every
call. The one in place therefore reduces with MAX. `count` is the number of elements of the whole
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

    call: Callable[[], object]
    output: torch.Tensor
    """The tensor that the operation writes, overwritten with `start` before each turn.

    Empty at a rank that receives nothing.
    """
    start: torch.Tensor
    expected: torch.Tensor
    """The values that `output` has after every call."""


def _values(rank: int, count: int) -> torch.Tensor:
    """Return small integers that differ from rank to rank; their sums are exact."""
    return (torch.arange(count) % 1021 + 1024 * (rank + 1)).float()


def _all_values(group: Group, count: int) -> torch.Tensor:
    return torch.stack([_values(rank, count) for rank in range(group.size())])


def _into(output: torch.Tensor, expected: torch.Tensor, call: Callable[[], object]) -> Operation:
    """Return an operation that only writes `output`."""
    return Operation(call=call, output=output, start=torch.full_like(output, -1), expected=expected)


def _nothing() -> torch.Tensor:
    return torch.empty(0)


def _reduce_scatter(group: Group, count: int) -> Operation:
    source, output = _values(group.rank(), count), torch.empty(count // group.size())
    expected = _all_values(group, count).sum(0).chunk(group.size())[group.rank()]
    return _into(output, expected, lambda: _REDUCE_SCATTER(output, source, group=group))


def _all_gather(group: Group, count: int) -> Operation:
    part = count // group.size()
    source, output = _values(group.rank(), part), torch.empty(count)
    expected = _all_values(group, part).flatten()
    return _into(output, expected, lambda: _ALL_GATHER(output, source, group=group))


def _broadcast(group: Group, count: int) -> Operation:
    buffer, expected = torch.empty(count), _values(ROOT, count)
    start = expected if group.rank() == ROOT else torch.full_like(buffer, -1)
    return Operation(
        call=lambda: dist.broadcast(buffer, ROOT, group=group),
        output=buffer,
        start=start,
        expected=expected,
    )


def _reduce(group: Group, count: int) -> Operation:
    buffer = _values(group.rank(), count)
    is_root = group.rank() == ROOT
    # Torch does not define the other ranks' buffers afterwards, so only the root's is checked.
    return Operation(
        call=lambda: dist.reduce(buffer, ROOT, dist.ReduceOp.MAX, group=group),
        output=buffer if is_root else _nothing(),
        start=_values(ROOT, count) if is_root else _nothing(),
        expected=_all_values(group, count).amax(0) if is_root else _nothing(),
    )


def _gather(group: Group, count: int) -> Operation:
    part = count // group.size()
    source = _values(group.rank(), part)
    if group.rank() != ROOT:
        return _into(_nothing(), _nothing(), lambda: dist.gather(source, dst=ROOT, group=group))
    output = torch.empty(count)
    parts = list(output.chunk(group.size()))
    expected = _all_values(group, part).flatten()
    return _into(output, expected, lambda: dist.gather(source, parts, dst=ROOT, group=group))


def _scatter(group: Group, count: int) -> Operation:
    output = torch.empty(count // group.size())
    parts = list(_values(ROOT, count).chunk(group.size()))
    given = parts if group.rank() == ROOT else None
    return _into(
        output, parts[group.rank()], lambda: dist.scatter(output, given, src=ROOT, group=group)
    )


def _all_to_all(group: Group, count: int) -> Operation:
    source, output = _values(group.rank(), count), torch.empty(count)
    sent = [_values(rank, count).chunk(group.size()) for rank in range(group.size())]
    expected = torch.cat([parts[group.rank()] for parts in sent])
    return _into(output, expected, lambda: dist.all_to_all_single(output, source, group=group))


def _barrier(group: Group, count: int) -> Operation:
    return _into(_nothing(), _nothing(), lambda: dist.barrier(group=group))


def _ping_pong(group: Group, count: int) -> Operation:
    """Return an operation that sends a message to the other rank of a pair, and one back.

    A rank without a partner does nothing.
    """
    peer, output, source = group.rank() ^ 1, torch.empty(count), _values(group.rank(), count)

    def ask() -> None:
        dist.send(source, peer, group=group)
        dist.recv(output, peer, group=group)

    def answer() -> None:
        dist.recv(output, peer, group=group)
        dist.send(source, peer, group=group)

    if peer >= group.size():
        return _into(_nothing(), _nothing(), lambda: None)
    return _into(output, _values(peer, count), ask if group.rank() < peer else answer)


OPERATIONS: Mapping[str, Callable[[Group, int], Operation]] = {
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
