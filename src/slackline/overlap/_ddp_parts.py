"""Virtual ranks for a model in torch's DistributedDataParallel, by a communication hook.

    all parts but the last   without synchronization: `grad` ──▶ a node of the tree, then None
    the last part            bucket ──▶ hook ──▶ this rank's nodes reduced in the tree ──▶ bucket

DDP's own accumulation adds the gradients of a rank's parts from left to right, which depends on the
number of ranks. So each part's gradients are taken out of `grad` before the next part begins.
"""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from slackline.errors import UsageError
from slackline.overlap._hooked_parts import HookedParts
from slackline.overlap.reduction import ParameterState, flat_request

if TYPE_CHECKING:
    from slackline.nic import TimedTransfer
    from slackline.overlap.exchange import NodeExchange

__all__ = ["DDPParts"]


class DDPParts(HookedParts):
    """The virtual ranks of a model in DistributedDataParallel.

        ddp = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(ddp.parameters())
        parallel = DDPParts(ddp, optimizer, virtual_ranks=8, seed=0)
        for step in range(steps):
            for part in parallel.parts(step):
                with part:
                    x = data[part.indices(len(data), batch=256)]
                    loss(ddp(x)).backward()
            optimizer.step()
            optimizer.zero_grad()

    Parameters, buffers and the optimizer's state get the bits of DataParallel with as many virtual
    ranks, on any number of ranks. A parameter that the last part of a rank does not use needs DDP's
    find_unused_parameters=True.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        virtual_ranks: int,
        seed: int = 0,
        exact: bool = True,
        hash_every: int = 1,
    ) -> None:
        """Register the communication hook of a model; DDP allows one hook, before the first step.

        The model is in the CPU's memory, and its process group of the backend slackline. All ranks
        make the call. Raises UsageError for another model or group, for fewer virtual ranks than
        ranks, and for a model with SyncBatchNorm, and MismatchError if the ranks have other numbers
        of virtual ranks or seeds. `exact` and `hash_every` are as in DataParallel.
        """
        if not isinstance(model, DistributedDataParallel):
            raise UsageError(
                f"DDPParts needs a model in DistributedDataParallel, not a {type(model).__name__}"
            )

        def register(exchange: "NodeExchange") -> _BucketGradients:
            return _BucketGradients(model, exchange)

        super().__init__(
            model.module,
            optimizer,
            model.process_group,
            register,
            virtual_ranks=virtual_ranks,
            seed=seed,
            exact=exact,
            hash_every=hash_every,
        )


class _BucketGradients:
    """The gradients of a DDP model: from `grad` for most parts, from buckets for the last one."""

    extra = updating = False

    def __init__(self, model: DistributedDataParallel, exchange: "NodeExchange") -> None:
        self._model, self._exchange = model, exchange
        named = [
            (index, name, each)
            for index, (name, each) in enumerate(model.module.named_parameters())
            if each.requires_grad
        ]
        placed = sorted(named, key=lambda each: (str(each[2].dtype), -each[0]))
        flats = exchange.allocate([flat_request(each) for _, _, each in placed])
        self.states = [
            ParameterState(index, name, 0, each, flat, 1, most=1)
            for (index, name, each), flat in zip(placed, flats, strict=True)
        ]
        """The state of each gradient, in their order in memory."""
        self._places = {id(state.parameter): at for at, state in enumerate(self.states)}
        self._posts: dict[tuple[int, int], Callable[[int], Any]] = {}
        """The reduction of each run of adjacent gradients that a bucket has had."""
        self._posted = set[int]()
        self._used = set[ParameterState]()
        """The parameters that have had a gradient in an earlier part of this step."""
        self._begun: dict[int, tuple[Tensor, int]] = {}
        """The gradients to which the last part adds, with their versions, by their places."""
        model.register_comm_hook(self, _BucketGradients._reduce)

    def synchronize(self, last: bool) -> None:
        self._model.require_backward_grad_sync = last

    def reset_step(self) -> None:
        """Prepare for the last part.

        DDP refuses a parameter without a gradient in the last part that had one in an earlier part.
        Such a parameter begins with a gradient of -0.0, to which any number can be added unchanged.
        """
        self._posted.clear()
        self._begun.clear()
        if self._model.find_unused_parameters:
            for at, state in enumerate(self.states):
                if state in self._used:
                    grad = _alike(state.values, state.parameter).fill_(-0.0)
                    state.parameter.grad = grad
                    self._begun[at] = grad, grad._version
        self._used.clear()

    def finish_all(self) -> None:
        """Record which parameters have a gradient; DDP leaves no optimizer step pending."""
        self._used.update(state for state in self.states if state.parameter.grad is not None)

    def wait_reduced(self) -> None:
        """Do nothing: DDP's backward pass ends when its gradients are reduced."""

    def present(self) -> list[Tensor | None]:
        states = sorted(self.states, key=lambda state: state.index)
        return [state.parameter.grad for state in states]

    def drop(self) -> None:
        self.finish_all()  # DDP remembers the parameters of the dropped part as used.
        for state in self.states:
            state.parameter.grad = None

    def detach(self) -> None:
        for state in self.states:
            state.detach()

    def _reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Reduce a bucket of the last part, together with the nodes of the parts before."""
        buffer, grads = bucket.buffer(), bucket.gradients()
        if buffer.layout is not torch.strided:
            raise UsageError(f"virtual ranks need dense gradients, not {buffer.layout}")
        places = [self._places[id(parameter)] for parameter in bucket.parameters()]
        if not self._posted.isdisjoint(places):
            raise UsageError(
                "a part has had several backward passes: add the losses, and call backward once"
            )
        self._posted.update(places)
        mine = [
            _alike(self.states[at].values, grad) for at, grad in zip(places, grads, strict=True)
        ]
        torch._foreach_copy_(mine, grads)
        for at, values in zip(places, mine, strict=True):
            grad, version = self._begun.get(at, (values, -1))
            if grad._version == version:
                values.zero_()  # The last part has no gradient of the parameter.
        runs = _runs(sorted(places), [state.flat.dtype for state in self.states])
        landing = _Landing(buffer, grads, mine, len(runs))
        for run in runs:
            transfer = cast("TimedTransfer", self._post_of(run)(run[0]))
            transfer.add_done_callback(landing.ended)
        return landing.future

    def _post_of(self, run: tuple[int, int]) -> Callable[[int], Any]:
        if run not in self._posts:
            first, last = self.states[run[0]], self.states[run[1]]
            flat = self._exchange.span(first.flat, last.flat)
            self._posts[run] = self._exchange.reduction(first.index, flat, average=True)
        return self._posts[run]


class _Landing:
    """The end of a bucket's reductions: the averages are copied back, and DDP's Future is set."""

    def __init__(
        self, buffer: Tensor, grads: Sequence[Tensor], averages: Sequence[Tensor], runs: int
    ) -> None:
        self.future: Future[Tensor] = Future()
        self._buffer, self._grads, self._averages = buffer, list(grads), list(averages)
        self._missing = runs
        self._error: Any = None
        self._lock = threading.Lock()

    def ended(self, error: BaseException | None) -> None:
        """Take the end of one reduction; any thread may call this method."""
        with self._lock:
            self._missing -= 1
            self._error = self._error or error
            if self._missing:
                return
        if self._error is None:
            torch._foreach_copy_(self._grads, self._averages)
            self.future.set_result(self._buffer)
        else:
            self.future.set_exception(self._error)


def _alike(values: Tensor, like: Tensor) -> Tensor:
    """Return a gradient's elements in the exchange's memory with the shape of `like`."""
    if like.is_complex():
        values = torch.view_as_complex(values.view(-1, 2))
    return values.as_strided(like.shape, like.stride())


def _runs(places: Sequence[int], kinds: Sequence[torch.dtype]) -> list[tuple[int, int]]:
    """Return the first and last place of each run of adjacent places with one type."""
    runs = list[tuple[int, int]]()
    for at in places:
        if runs and runs[-1][1] == at - 1 and kinds[at] is kinds[at - 1]:
            runs[-1] = runs[-1][0], at
        else:
            runs.append((at, at))
    return runs
