"""Sends and receives, and the monitored barrier, which names missing ranks."""

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import distributed as dist

from slackline.backend._timeouts import wait_limit
from slackline.backend._torch import excluded_from_compile
from slackline.backend.operations._arguments import only_tensor
from slackline.backend.operations._codes import moved_as
from slackline.backend.operations._posting import Poster
from slackline.errors import TimeoutError, UsageError
from slackline.nic import Operation
from slackline.staging import HostBuffers
from slackline.wire import DType

__all__ = ["PointToPoint"]

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
