"""Operations that copy tensors between ranks: broadcast and its like, barriers, and messages."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist

from slackline.backend._torch import excluded_from_compile, wait_limit
from slackline.backend.operations._arguments import (
    apart,
    are_separate,
    check_alike,
    first_of,
    moved_as,
    only_list,
    only_tensor,
    whole_target,
)
from slackline.backend.operations._posting import Poster, check_modes
from slackline.backend.staging import PIECE_BYTES, Buffers, HostBuffers, check_on, flat
from slackline.errors import TimeoutError, UsageError
from slackline.nic import Operation
from slackline.wire import DType

if TYPE_CHECKING:
    from slackline.backend.staging import Device

__all__ = ["DataMovement", "PointToPoint"]


Tensors = torch.Tensor | Sequence[torch.Tensor]


@excluded_from_compile
class DataMovement(Poster):
    """The copying collectives of a process group, under the names by which torch calls them.

    Each method takes torch's options object, or the root and timeout of torch's short forms.
    """

    def broadcast(
        self, tensors: Tensors, opts: Any = 0, timeout: timedelta | None = None
    ) -> dist.Work:
        tensor = only_tensor(tensors)
        root, options = _root(opts)
        code, width = moved_as(tensor.dtype)
        buffers = self._buffers_for(tensor)
        address = buffers.source(tensor) if self._me == root else buffers.target(tensor)
        operation = Operation.broadcast(address, tensor.numel() * width, code, root)
        return self._run(operation, buffers, [tensor], options, timeout)

    def allgather(
        self,
        outputs: Sequence[Any],
        sent: Tensors,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        source = only_tensor(sent)
        targets = only_list(outputs, self._ranks, "outputs of all_gather")
        buffers = self._buffers_for(source)
        operation = self._all_gather_of(buffers, targets, source)
        return self._run(operation, buffers, targets, *_options(opts, timeout))

    def allgather_coalesced(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Gather every input tensor of every rank; `outputs[i][j]` receives input j of rank i."""
        buffers = self._buffers_for(first_of(inputs))
        operations = [
            self._all_gather_of(buffers, [of_rank[index] for of_rank in outputs], source)
            for index, source in enumerate(inputs)
        ]
        results = [tensor for of_rank in outputs for tensor in of_rank]
        return self._run(operations, buffers, results, *_options(opts, timeout))

    def all_gather_single(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        check_modes()
        if source.nbytes * self._ranks > PIECE_BYTES:
            device = self._device_of(source.device)
            if device is not None:
                return self._all_gather_in_pieces(device, target, source, *_options(opts, timeout))
        buffers = self._buffers_for(source)
        operation = self._all_gather_single_of(buffers, target, source)
        return self._run(operation, buffers, [target], *_options(opts, timeout))

    def _all_gather_in_pieces(
        self,
        device: "Device",
        target: torch.Tensor,
        source: torch.Tensor,
        options: Any,
        timeout: timedelta | None,
    ) -> dist.Work:
        from slackline.backend.staging import gathered_pieces  # Only tensors on a device need it.

        check_alike([target], source.dtype)
        code, width = moved_as(source.dtype)
        self._check_gathered(target, source)
        check_on(source.device, target)
        whole, home = whole_target(target)
        part = flat(source)
        if not are_separate(whole, part, self._me):
            part = part.clone()
        rows = whole.view(self._ranks, -1).unbind()
        pieces = gathered_pieces(part, rows, self._me, PIECE_BYTES)

        def piece_of(places: Sequence[int], count: int, tag: int | None) -> Operation:
            counts = [count * width] * self._ranks
            return Operation.all_gather(places[self._me], places, counts, code, tag=tag)

        post = self._posting_of_rows(device, pieces, piece_of, target, home)
        return self._run_in_pieces("all_gather", post, [target], options, timeout)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        buffers = self._buffers_for(first_of(inputs))
        operations = [
            self._all_gather_single_of(buffers, target, source)
            for target, source in zip(outputs, inputs, strict=True)
        ]
        return self._run(operations, buffers, list(outputs), *_options(opts, timeout))

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(
        self,
        outputs: Sequence[Any],
        sent: Tensors,
        opts: Any = 0,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        source = only_tensor(sent)
        root, options = _root(opts)
        code, targets, counts = self._of_root(source, outputs, root, "outputs of gather")
        buffers = self._buffers_for(source)
        taken = [buffers.target(target) for target in targets]
        given = apart(buffers, source, targets, taken, own=root)
        operation = Operation.gather(given, taken, counts, code, root)
        return self._run(operation, buffers, targets, options, timeout)

    def gather_single(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        opts: Any = 0,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        """Gather the ranks' tensors in one tensor of the root; other ranks' targets are unused."""
        root, _ = _root(opts)
        limits = () if timeout is None else (timeout,)
        if self._me != root:
            return self.gather([], [source], opts, *limits)
        expected = source.numel() * self._ranks
        if target.numel() != expected or not target.is_contiguous():
            raise UsageError(
                f"the output of gather_single must be contiguous and have {expected} elements, "
                f"not {target.numel()}"
            )
        parts = target.detach().view(self._ranks, source.numel()).unbind()
        return self.gather([list(parts)], [source], opts, *limits)

    gather_into_tensor = gather_single

    def scatter(
        self,
        received: Tensors,
        inputs: Sequence[Any],
        opts: Any = 0,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        target = only_tensor(received)
        root, options = _root(opts)
        code, sources, counts = self._of_root(target, inputs, root, "inputs of scatter")
        buffers = self._buffers_for(target)
        taken = buffers.target(target)
        given = [
            apart(buffers, source, [target], [taken], own=0 if rank == root else None)
            for rank, source in enumerate(sources)
        ]
        operation = Operation.scatter(given, taken, counts, code, root)
        return self._run(operation, buffers, [target], options, timeout)

    def alltoall(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        targets = only_list([outputs], self._ranks, "outputs of all_to_all")
        sources = only_list([inputs], self._ranks, "inputs of all_to_all")
        check_alike([*targets, *sources], sources[0].dtype)
        code, width = moved_as(sources[0].dtype)
        buffers = self._buffers_for(sources[0])
        taken = [buffers.target(target) for target in targets]
        operation = Operation.all_to_all(
            [apart(buffers, source, targets, taken) for source in sources],
            [source.numel() * width for source in sources],
            taken,
            [target.numel() * width for target in targets],
            code,
        )
        return self._run(operation, buffers, targets, *_options(opts, timeout))

    def all_to_all_single(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        target_splits: Sequence[int] = (),
        source_splits: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        check_alike([target], source.dtype)
        code, width = moved_as(source.dtype)
        buffers = self._buffers_for(source)
        taken = buffers.target(target)
        given = apart(buffers, source, [target], [taken])
        incoming = self._splits("output", target, target_splits)
        outgoing = self._splits("input", source, source_splits)
        operation = Operation.all_to_all(
            _addresses(given, outgoing, source),
            [count * width for count in outgoing],
            _addresses(taken, incoming, target),
            [count * width for count in incoming],
            code,
        )
        return self._run(operation, buffers, [target], *_options(opts, timeout))

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        check_modes()
        return self._run(Operation.barrier(), HostBuffers(), [], *_options(opts, timeout))

    def _of_root(
        self, own: torch.Tensor, lists: Sequence[Any], root: int, what: str
    ) -> tuple[DType, Sequence[torch.Tensor], list[int]]:
        """Return the type code, the tensors that only the root gives, and the counts of all ranks.

        `own` is the tensor that every rank gives; `what` names `lists` in errors. The tensors are
        empty at other ranks, which expect the size of `own` from every rank.
        """
        code, width = moved_as(own.dtype)
        tensors = only_list(lists, self._ranks, what) if self._me == root else []
        check_alike(tensors, own.dtype)
        counts = [tensor.numel() * width for tensor in tensors]
        return code, tensors, counts or [own.numel() * width] * self._ranks

    def _all_gather_of(
        self, buffers: Buffers, targets: Sequence[torch.Tensor], source: torch.Tensor
    ) -> Operation:
        check_alike(targets, source.dtype)
        code, width = moved_as(source.dtype)
        if targets[self._me].numel() != source.numel():
            raise UsageError(
                f"output {self._me} of all_gather must have {source.numel()} elements, "
                f"not {targets[self._me].numel()}"
            )
        taken = [buffers.target(target) for target in targets]
        given = apart(buffers, source, targets, taken, own=self._me)
        return Operation.all_gather(
            given, taken, [target.numel() * width for target in targets], code
        )

    def _all_gather_single_of(
        self, buffers: Buffers, target: torch.Tensor, source: torch.Tensor
    ) -> Operation:
        check_alike([target], source.dtype)
        code, width = moved_as(source.dtype)
        self._check_gathered(target, source)
        counts = [source.numel()] * self._ranks
        taken = _addresses(buffers.target(target), counts, target)
        given = apart(buffers, source, [source] * self._ranks, taken, own=self._me)
        return Operation.all_gather(given, taken, [count * width for count in counts], code)

    def _check_gathered(self, target: torch.Tensor, source: torch.Tensor) -> None:
        expected = source.numel() * self._ranks
        if target.numel() != expected:
            raise UsageError(
                f"the output of all_gather must have {expected} elements, not {target.numel()}"
            )

    def _splits(self, role: str, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """Return the number of a tensor's elements that all_to_all exchanges with each rank.

        `splits` counts the tensor's rows for each rank; an empty `splits` divides the rows evenly.
        Raises UsageError if the rows do not fit.
        """
        rows = tensor.shape[0] if tensor.dim() else 1
        if not splits:
            if rows % self._ranks:
                raise UsageError(
                    f"the {role} of all_to_all must have rows for {self._ranks} ranks, not {rows}"
                )
            splits = [rows // self._ranks] * self._ranks
        if len(splits) != self._ranks or sum(splits) != rows or min(splits) < 0:
            raise UsageError(
                f"the {role} splits of all_to_all must be {self._ranks} numbers whose sum "
                f"is {rows}, not {list(splits)}"
            )
        per_row = tensor.numel() // rows if rows else 0
        return [split * per_row for split in splits]


def _addresses(base: int, counts: Sequence[int], tensor: torch.Tensor) -> list[int]:
    """Return the start address of each of several adjacent parts; the first begins at `base`.

    `counts` are the parts' numbers of elements.
    """
    starts = accumulate(counts[:-1], initial=0)
    return [base + start * tensor.element_size() for start in starts]


def _root(opts: Any) -> tuple[int, Any]:
    """Return an operation's root rank and torch's options.

    In torch's short forms, `opts` is the root itself, and the returned options are None.
    """
    return (opts, None) if isinstance(opts, int) else (opts.rootRank, opts)


def _options(opts: Any, timeout: timedelta | None) -> tuple[Any, Any]:
    """Return torch's options of an operation, and its timeout.

    In torch's short forms, `opts` is the timeout itself, and the returned options are None.
    """
    return (None, opts) if isinstance(opts, timedelta | float) else (opts, timeout)


_USER_TAGS = (1 << 24) - 1
"""The tags of user programs; the highest tag of a group is the monitored barrier's."""


@excluded_from_compile
class PointToPoint(Poster):
    """The point-to-point operations of a process group, under the names by which torch calls them.

    The n-th send with a tag matches the n-th receive with the same tag, whatever other operations
    are in flight.
    """

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> dist.Work:
        tensor = only_tensor(tensors)
        code, width = moved_as(tensor.dtype)
        buffers = self._buffers_for(tensor)
        operation = Operation.send(
            buffers.source(tensor),
            tensor.numel() * width,
            code,
            dst,
            _user_tag(tag),
        )
        return self._run(operation, buffers, [tensor], None)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> dist.Work:
        return self._recv(tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> dist.Work:
        return self._recv(tensors, None, tag)

    def _recv(self, tensors: Sequence[torch.Tensor], peer: int | None, tag: int) -> dist.Work:
        tensor = only_tensor(tensors)
        code, width = moved_as(tensor.dtype)
        buffers = self._buffers_for(tensor)
        operation = Operation.recv(
            buffers.target(tensor),
            tensor.numel() * width,
            code,
            peer,
            _user_tag(tag),
        )
        return self._run(operation, buffers, [tensor], None)

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Block until all ranks have called this barrier; rank 0's error names missing ranks.

        If `timeout` is None or zero, the group's `default_timeout` applies. After it, rank 0 raises
        TimeoutError. With `wait_all_ranks` the error names all missing ranks, else only the first.
        If a rank has ended or left the group, rank 0 at once raises PeerError, which names that
        rank. The other ranks then fail because rank 0 has ended, or with a timeout of their own.
        """
        limit = (timeout and wait_limit(timeout)) or self.default_timeout
        if self._me != 0:
            self._call(0, sending=True, timeout=limit)
            self._call(0, sending=False, timeout=limit)
            return
        missing = []
        for rank in range(1, self._ranks):
            try:
                self._call(rank, sending=False, timeout=limit)
            except TimeoutError:
                missing.append(rank)
                if not wait_all_ranks:
                    break
        if missing:
            names = ", ".join(str(rank) for rank in missing)
            raise TimeoutError(
                f"monitored_barrier Timed out after {limit}: ranks that did not come: {names}",
                rank=0,
                peer=missing[0],
            )
        for rank in range(1, self._ranks):
            self._call(rank, sending=True, timeout=limit)

    def _call(self, peer: int, *, sending: bool, timeout: timedelta) -> None:
        token = torch.zeros(1, dtype=torch.uint8, device="cpu")
        make = Operation.send if sending else Operation.recv
        operation = make(token.data_ptr(), 1, DType.UINT8, peer, self._barrier_tag)
        self._run(operation, HostBuffers(), [token], None, timeout, name="monitored_barrier").wait()


def _user_tag(tag: int) -> int:
    if not 0 <= tag < _USER_TAGS:
        raise UsageError(f"a tag must be in 0..{_USER_TAGS - 1}, not {tag}")
    return tag
