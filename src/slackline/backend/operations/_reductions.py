"""Collectives that reduce the ranks' tensors: all_reduce, reduce, reduce_scatter, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed as dist
from torch.autograd import profiler  # `allreduce` reads its flag without a call, which is fast

from slackline.backend._torch import (
    UNSET,
    AllreduceOptions,
    excluded_from_compile,
    reduction_number,
    time_limit,
)
from slackline.backend.operations._arguments import (
    REDUCTIONS,
    apart,
    are_separate,
    check_alike,
    first_of,
    moved_as,
    only_list,
    only_tensor,
    premultiplier,
    reduced_as,
    whole_target,
)
from slackline.backend.operations._callbacks import Order, current, running, tags_here
from slackline.backend.operations._posting import Poster, check_modes
from slackline.backend.operations._work import CompletedWork, TransferWork
from slackline.backend.profiling import observed
from slackline.backend.staging import PIECE_BYTES, HostBuffers, NeedsDispatcher, check_on, flat
from slackline.errors import UsageError
from slackline.nic import Operation

if TYPE_CHECKING:
    from slackline.backend.staging import Buffers, Device
    from slackline.nic import Prepared, Transfer
    from slackline.wire import DType, ReduceOp

__all__ = ["Reductions"]

Tensors = torch.Tensor | Sequence[torch.Tensor]
_SUM = dist.ReduceOp.SUM
_OWN_MEMORY = (torch.Tensor, torch.nn.Parameter)
"""The types of nearly all tensors whose memory is their own; `is_plain` knows all of them."""
_active_modes = torch._C._len_torch_dispatch_stack
_MOST_PREPARED = 4096
"""The most sizes and types of all_reduces that a group keeps prepared."""
_REDUCTIONS = {
    number: (
        op,
        {kind: (code, 256 * op + code) for kind, code in codes.items() if not kind.is_complex},
    )
    for number, (op, codes) in REDUCTIONS.items()
}
"""The codes of the fast path, in plain dicts, which are faster than read-only mappings; and a
number for each pair of codes. Complex tensors may be conjugated lazily."""


@excluded_from_compile
class Reductions(Poster):
    """The reducing collectives of a process group, under the names by which torch calls them.

    Each method takes torch's options object, or the reduction and timeout of torch's short forms.
    """

    def allreduce(
        self, tensors: Tensors, opts: Any = _SUM, timeout: timedelta | None = None
    ) -> dist.Work:
        seen = profiler._is_profiler_enabled or observed()
        if seen:
            self._show("allreduce", tensors, opts, *(() if timeout is None else (timeout,)))
        # This fast path serves one contiguous CPU tensor, the most frequent call of training.
        # All other cases, and all errors, are left to `_all_reduce`.
        if (
            type(opts) is AllreduceOptions
            and self._staging is None
            and not seen
            and not _active_modes()
            and not (running and current())
        ):
            try:
                (tensor,) = tensors
                op, codes = _REDUCTIONS[hash(opts.reduceOp)]
                code, pair = codes[tensor.dtype]
                plain = (
                    type(tensor) in _OWN_MEMORY
                    and tensor.is_cpu
                    and tensor.is_contiguous()
                    and not (tensor.is_neg() or tensor.is_nested)
                )
                address = tensor.data_ptr()
            except (KeyError, TypeError, ValueError, RuntimeError):
                plain = False
            if plain and address:
                given = opts.timeout
                limit = self._timeout if given == UNSET else time_limit(given)
                self._collectives += 1
                count = tensor.numel()
                prepared = self._prepared.get(count << 16 | pair)
                if prepared is None:
                    prepared = self._prepare(count, code, op, count << 16 | pair)
                if opts.asyncOp:
                    transfer = prepared.post_at(address, limit, False)
                    return self._remember(TransferWork(transfer, [tensor]), self._collectives)
                prepared.post_at(address, limit, True)
                return self._done
        try:
            return self._all_reduce(tensors, opts, timeout)
        except NeedsDispatcher:
            pass
        limits = () if timeout is None else (timeout,)
        return self._dispatch("allreduce", tensors, opts, *limits)

    def _prepare(self, count: int, dtype: DType, op: ReduceOp, key: int) -> Prepared:
        """Return a prepared all_reduce for this size and type, and keep it under `key`."""
        prepared = self._nic.prepare(Operation.all_reduce(0, 0, count, dtype, op))
        if len(self._prepared) >= _MOST_PREPARED:
            self._prepared.clear()
        self._prepared[key] = prepared
        return prepared

    def _all_reduce(self, tensors: Tensors, opts: Any, timeout: timedelta | None) -> dist.Work:
        tensor = only_tensor(tensors)
        op, options = _reduction(opts)
        check_modes()
        if tensor.layout is torch.sparse_coo:
            return self._all_reduce_sparse(tensor, op, options, timeout)
        if tensor.numel() * tensor.element_size() > PIECE_BYTES:
            device = self._device_of(tensor.device)
            if device is not None:
                return self._all_reduce_in_pieces(device, tensor, op, options, timeout)
        buffers = self._buffers_for(tensor)
        operation = self._all_reduce_of(buffers, tensor, op)
        return self._run(operation, buffers, [tensor], options, timeout)

    def _all_reduce_sparse(
        self, tensor: torch.Tensor, op: Any, options: Any, timeout: timedelta | None
    ) -> dist.Work:
        """Sum a sparse tensor over the ranks; raise UsageError for another reduction.

        Blocks even if the call is asynchronous, since the lengths of later messages depend on the
        first message.
        """
        from slackline.backend.operations._sparse import add_sparse  # Most tensors are dense.

        if reduction_number(op) != reduction_number(_SUM):
            raise UsageError(f"sparse tensors can only be summed, not reduced with {op}")
        limit = self._limit(options, timeout)

        def gather(outputs: Sequence[torch.Tensor], source: torch.Tensor) -> None:
            code, width = moved_as(source.dtype)
            buffers = HostBuffers()
            operation = Operation.all_gather(
                buffers.source(source),
                [buffers.target(output) for output in outputs],
                [output.numel() * width for output in outputs],
                code,
            )
            self._run(operation, buffers, outputs, None, limit).wait()

        add_sparse(tensor, self._me, self._ranks, gather)
        return CompletedWork([tensor])

    def _all_reduce_in_pieces(
        self,
        device: Device,
        tensor: torch.Tensor,
        op: Any,
        options: Any,
        timeout: timedelta | None,
    ) -> dist.Work:
        code, width, reduction = reduced_as(tensor.dtype, op)
        staging = self.staging()
        staging.admit()
        factor = premultiplier(op)
        values = tensor.detach()
        source = values if factor is None else (values * factor).to(tensor.dtype)
        tags = tags_here(self._callbacks.identity)

        def post(timeout: timedelta | None) -> dist.Work:
            def post_piece(host: torch.Tensor) -> Transfer:
                address, count = host.data_ptr(), host.numel() * width
                piece = Operation.all_reduce(
                    address, address, count, code, reduction, tag=next(tags)
                )
                return self._nic.post(piece, timeout=timeout)

            transfer = staging.post_long(device, source, values, post_piece)
            return self._staged_work(transfer, [tensor], Order.COLLECTIVE)

        return self._run_in_pieces("all_reduce", post, [tensor], options, timeout)

    def _reduce_scatter_in_pieces(
        self,
        device: Device,
        target: torch.Tensor,
        source: torch.Tensor,
        op: Any,
        options: Any,
        timeout: timedelta | None,
    ) -> dist.Work:
        from slackline.backend.staging import scattered_pieces  # Only tensors on a device need it.

        check_alike([source], target.dtype)
        code, width, reduction = reduced_as(target.dtype, op)
        _check_count("input of reduce_scatter", source, target.numel() * self._ranks)
        check_on(target.device, source)
        part, home = whole_target(target)
        whole = flat(source)
        if not are_separate(whole, part, self._me):
            whole = whole.clone()
        rows = whole.view(self._ranks, -1).unbind()
        pieces = scattered_pieces(rows, part, self._me, PIECE_BYTES)

        def piece_of(places: Sequence[int], count: int, tag: int | None) -> Operation:
            counts = [count * width] * self._ranks
            own = places[self._me]
            return Operation.reduce_scatter(places, counts, own, code, reduction, tag=tag)

        post = self._posting_of_rows(device, pieces, piece_of, target, home)
        return self._run_in_pieces("reduce_scatter", post, [target], options, timeout)

    def allreduce_coalesced(
        self, tensors: Sequence[torch.Tensor], opts: Any = _SUM, timeout: timedelta | None = None
    ) -> dist.Work:
        op, options = _reduction(opts)
        buffers = self._buffers_for(first_of(tensors))
        operations = [self._all_reduce_of(buffers, tensor, op) for tensor in tensors]
        return self._run(operations, buffers, list(tensors), options, timeout)

    def reduce(
        self,
        tensors: Tensors,
        opts: Any = 0,
        op: Any = _SUM,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        tensor = only_tensor(tensors)
        root = opts if isinstance(opts, int) else opts.rootRank
        if not isinstance(opts, int):
            op, timeout = opts.reduceOp, None
        options = None if isinstance(opts, int) else opts
        code, width, reduction = reduced_as(tensor.dtype, op)
        buffers = self._buffers_for(tensor)
        if self._me == root:
            source, target = self._in_place(buffers, tensor, op)
        else:
            source = target = self._source(buffers, tensor, op)
        operation = Operation.reduce(source, target, tensor.numel() * width, code, reduction, root)
        return self._run(operation, buffers, [tensor], options, timeout)

    def reduce_scatter(
        self,
        received: Tensors,
        inputs: Sequence[Any],
        opts: Any = _SUM,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        target = only_tensor(received)
        sources = only_list(inputs, self._ranks, "inputs of reduce_scatter")
        op, options = _reduction(opts)
        check_alike(sources, target.dtype)
        code, width, reduction = reduced_as(target.dtype, op)
        _check_count("output of reduce_scatter", target, sources[self._me].numel())
        buffers = self._buffers_for(target)
        taken = buffers.target(target)
        given = [
            self._source(buffers, source, op)
            if premultiplier(op) is not None
            else apart(buffers, source, [target], [taken], own=0 if rank == self._me else None)
            for rank, source in enumerate(sources)
        ]
        counts = [source.numel() * width for source in sources]
        operation = Operation.reduce_scatter(given, counts, taken, code, reduction)
        return self._run(operation, buffers, [target], options, timeout)

    def reduce_scatter_single(
        self,
        target: torch.Tensor,
        source: torch.Tensor,
        opts: Any = _SUM,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        op, options = _reduction(opts)
        check_modes()
        if target.nbytes * self._ranks > PIECE_BYTES and premultiplier(op) is None:
            device = self._device_of(target.device)
            if device is not None:
                return self._reduce_scatter_in_pieces(device, target, source, op, options, timeout)
        buffers = self._buffers_for(target)
        operation = self._reduce_scatter_of(buffers, target, source, op)
        return self._run(operation, buffers, [target], options, timeout)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        opts: Any = _SUM,
        timeout: timedelta | None = None,
    ) -> dist.Work:
        op, options = _reduction(opts)
        buffers = self._buffers_for(first_of(outputs))
        operations = [
            self._reduce_scatter_of(buffers, target, source, op)
            for target, source in zip(outputs, inputs, strict=True)
        ]
        return self._run(operations, buffers, list(outputs), options, timeout)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _all_reduce_of(self, buffers: Buffers, tensor: torch.Tensor, op: Any) -> Operation:
        code, width, reduction = reduced_as(tensor.dtype, op)
        source, target = self._in_place(buffers, tensor, op)
        return Operation.all_reduce(source, target, tensor.numel() * width, code, reduction)

    def _reduce_scatter_of(
        self, buffers: Buffers, target: torch.Tensor, source: torch.Tensor, op: Any
    ) -> Operation:
        check_alike([source], target.dtype)
        code, width, reduction = reduced_as(target.dtype, op)
        _check_count("input of reduce_scatter", source, target.numel() * self._ranks)
        nbytes = target.numel() * target.element_size()
        taken = buffers.target(target)
        base = self._source(buffers, source, op)
        if taken != base + self._me * nbytes and premultiplier(op) is None:
            base = apart(buffers, source, [target], [taken])
        places = [base + rank * nbytes for rank in range(self._ranks)]
        counts = [target.numel() * width] * self._ranks
        return Operation.reduce_scatter(places, counts, taken, code, reduction)

    def _in_place(self, buffers: Buffers, tensor: torch.Tensor, op: Any) -> tuple[int, int]:
        """Return the source and target addresses of a reduction that overwrites its input."""
        if premultiplier(op) is None:
            address = buffers.in_place(tensor)
            return address, address
        return self._source(buffers, tensor, op), buffers.target(tensor)

    def _source(self, buffers: Buffers, tensor: torch.Tensor, op: Any) -> int:
        """Return the address of a tensor's elements, which are multiplied first for PREMUL_SUM."""
        factor = premultiplier(op)
        if factor is None:
            return buffers.source(tensor)
        return buffers.temporary((tensor.detach() * factor).to(tensor.dtype))


def _reduction(opts: Any) -> tuple[Any, Any]:
    """Return an operation's reduction and torch's options.

    In torch's short forms, `opts` is the reduction itself, and the returned options are None.
    """
    if hasattr(opts, "reduceOp"):
        return opts.reduceOp, opts
    return opts, None


def _check_count(role: str, tensor: torch.Tensor, expected: int) -> None:
    if tensor.numel() != expected:
        raise UsageError(f"the {role} must have {expected} elements, not {tensor.numel()}")
