"""The common path of all operations, from torch's call to the nic and back as a torch Work."""

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import distributed as dist

from slackline.backend._cuda import CudaCopies, CudaLane, CudaStage, CudaWork
from slackline.backend._identity import Identity
from slackline.backend._pieces import Piece
from slackline.backend._profile import Facts, profiling, recorded
from slackline.backend._stage import HostStage, Stage
from slackline.backend._torch import Store, left_alone_by_compile
from slackline.backend._transfers import Several, Then
from slackline.backend._work import DoneWork, TransferWork
from slackline.errors import UsageError
from slackline.nic import Group, Transfer

_UNHEARD = 64
"""The dropped Works that stay alive for torch's C++ code, which may still wait for one of them.
DistributedDataParallel needs its latest Work until its backward."""

__all__ = ["PiecePosting", "Poster", "Posting", "together"]


class Posting(Protocol):
    """A function that posts an engine operation whose tensors and ranks are fixed already."""

    def __call__(self, *, timeout: timedelta | None, blocking: bool) -> Transfer: ...


class PiecePosting(Protocol):
    """A function that posts an in-place engine operation on a piece of a tensor in host memory."""

    def __call__(self, host: torch.Tensor, /, *, timeout: timedelta | None) -> Transfer: ...


@left_alone_by_compile
class Poster(Identity):
    """The base class of a group's operations, which posts them and makes their Works.

    Collectives are matched between ranks by the order of the calls. An operation on a CUDA tensor
    can be posted only after its copy to the host. So from the first such operation on, one thread
    (a CudaLane) posts all operations of the group, in the order of the calls.
    """

    def __init__(self, nic: Group, store: Store) -> None:
        super().__init__(store, nic.rank, nic.size, nic.timeout)
        self._nic = nic
        self._ranks = nic.size
        self._me = nic.rank
        self._done = DoneWork()
        self._lane: CudaLane | None = None
        self._coalesced: list[dist.Work] | None = None
        self._unheard: deque[TransferWork] = deque(maxlen=_UNHEARD)
        self._collectives = 0
        """The number of collectives so far; on every rank it identifies the same collective."""

    def _stage_for(self, tensor: torch.Tensor) -> Stage:
        """Return a new Stage (buffers in host memory) for an operation on this tensor's device.

        Raises UsageError for a device other than cpu and cuda.
        """
        kind = tensor.device.type
        if kind == "cpu":
            return HostStage()
        if kind != "cuda":
            raise UsageError(f"slackline takes tensors on cpu and cuda, not on {tensor.device}")
        return self._opened_lane().stage(tensor.device)

    def _opened_lane(self) -> CudaLane:
        if self._lane is None:
            self._lane = CudaLane()
        return self._lane

    def _run(
        self,
        name: str,
        posting: Posting,
        stage: Stage,
        results: Sequence[torch.Tensor],
        opts: Any,
        timeout: timedelta | None = None,
        message: Facts | None = None,
    ) -> dist.Work:
        """Post an operation on the NIC engine and return its torch Work.

        `opts` are torch's options or None; `timeout` is the timeout of a call without options. If
        the options ask for a synchronous call, block until the operation is done, unless the group
        has already used CUDA tensors. In a profile, a point-to-point operation shows `message`, and
        a collective (None) its number.
        """
        if message is None:
            self._collectives += 1
        limit = self._limit(opts, timeout)
        blocking = opts is not None and not opts.asyncOp
        if not profiling():
            return self._post(posting, stage, results, limit, blocking)

        def post() -> dist.Work:
            return self._post(posting, stage, results, limit, blocking)

        return recorded(name, post, blocking, results, self._facts(message))

    def _run_in_pieces(
        self,
        name: str,
        posting: PiecePosting,
        pieces: Sequence[Piece],
        copies: CudaCopies,
        results: Sequence[torch.Tensor],
        opts: Any,
        timeout: timedelta | None,
        after: Callable[[], None] | None,
    ) -> dist.Work:
        """Post a collective on the pieces of a long tensor of a device, and return its Work.

        `after` is called when the copies of all results to the device are queued. The other
        arguments are those of `_run`.
        """
        self._collectives += 1
        limit = self._limit(opts, timeout)

        def post() -> dist.Work:
            transfer = self._opened_lane().post_pieces(
                pieces, copies, lambda host: posting(host, timeout=limit)
            )
            if after is not None:
                transfer = Then(transfer, after)
            return self._remember(CudaWork(transfer, results, copies))

        if not profiling():
            return post()
        return recorded(
            name, post, opts is not None and not opts.asyncOp, results, self._facts(None)
        )

    def _facts(self, message: Facts | None) -> Facts:
        said = {"sequence": self._collectives - 1} if message is None else message
        return {"group": self._name, **said}

    def _post(
        self,
        posting: Posting,
        stage: Stage,
        results: Sequence[torch.Tensor],
        timeout: timedelta | None,
        blocking: bool,
    ) -> dist.Work:
        if self._lane is not None:
            return self._post_in_lane(self._lane, posting, stage, results, timeout)
        if blocking:
            posting(timeout=timeout, blocking=True)
            stage.land()
            return self._done
        transfer = posting(timeout=timeout, blocking=False)
        if stage.lands:
            transfer = Then(transfer, stage.land)
        return self._remember(TransferWork(transfer, results, stage))

    def _post_in_lane(
        self,
        lane: CudaLane,
        posting: Posting,
        stage: Stage,
        results: Sequence[torch.Tensor],
        timeout: timedelta | None,
    ) -> dist.Work:
        staged = stage if isinstance(stage, CudaStage) else None
        ready = None if staged is None else staged.depart()
        transfer = lane.post(ready, lambda: posting(timeout=timeout, blocking=False))
        if stage.lands:
            transfer = Then(transfer, stage.land)
        if staged is None:
            return self._remember(TransferWork(transfer, results, stage))
        return self._remember(CudaWork(transfer, results, staged))

    def _remember(self, work: TransferWork) -> dist.Work:
        work.unheard = self._unheard
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _limit(self, opts: Any, timeout: timedelta | None) -> timedelta | None:
        """Return the timeout of one operation; None means the timeout of the engine's group."""
        if timeout is None and opts is not None and opts.timeout > timedelta():
            timeout = opts.timeout
        return self._timeout if timeout is None else timeout

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the Works of the following calls until `_end_coalescing` merges them."""
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._coalesced = self._coalesced or [], None
        transfers = [work._transfer for work in works if isinstance(work, TransferWork)]
        if len(transfers) == 1:
            return works[0]
        return TransferWork(Several(transfers), [], works)


def together(postings: Sequence[Posting]) -> Posting:
    """Return a function that posts several operations at once, as one Transfer."""

    def post(*, timeout: timedelta | None, blocking: bool) -> Transfer:
        transfer = Several([posting(timeout=timeout, blocking=False) for posting in postings])
        if blocking:
            transfer.wait(timeout)
        return transfer

    return post
