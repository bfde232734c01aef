"""Virtual ranks: the parts of a training step that are the same on any number of ranks.

    for part in parallel.parts(step):       this rank's virtual ranks, one after the other
        with part:                          random numbers, buffers, the place in the tree
            x = data[part.indices(len(data), batch=256)]
            loss(parallel(x)).backward()
    optimizer.step(); optimizer.zero_grad()

A step has as many virtual ranks as the user says, and a rank computes a run of them. All that a
virtual rank computes depends on the seed, the step and its number alone: its samples, its random
numbers, and its buffers, which begin with the values at the step's beginning. Gradients and buffers
are added in a fixed tree over the virtual ranks (`slackline.plan.collective.SumTree`).
"""

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from slackline.errors import UsageError
from slackline.overlap._buffers import Places
from slackline.overlap._recorder import Recorder
from slackline.overlap._weights import Weights
from slackline.overlap.exchange import PartGradient, Whole
from slackline.overlap.reduction import Divisor

if TYPE_CHECKING:
    from slackline.overlap.certificate import Evidence
    from slackline.overlap.exchange import NodeExchange

__all__ = [
    "FLOATS",
    "PartGradients",
    "VirtualRank",
    "VirtualRanks",
    "check_virtual_ranks",
    "random_numbers",
    "seed_of",
]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""The types of buffers that are averaged."""


class _Gradient(PartGradient, Protocol):
    """The gradient of a parameter, or several that lie together."""

    name: str
    parameter: Tensor
    """The parameter whose `grad` is None before each virtual rank."""

    @property
    def reduced_before(self) -> bool:
        """Whether a reduced gradient is kept, to which further ones are added."""


class PartGradients(Protocol):
    """Gradients of a model from one virtual rank after the other."""

    @property
    def states(self) -> Sequence[_Gradient]:
        """The state of each gradient."""

    @property
    def extra(self) -> bool:
        """Whether a gradient of the last virtual rank has grown after its reduction was posted."""

    def reset_step(self) -> None:
        """Prepare for the reductions of a step, which the last virtual rank of a rank begins."""

    @property
    def updating(self) -> bool:
        """Whether an optimizer step is pending for some parameter."""

    def finish_all(self) -> None:
        """Block until every pending optimizer step is taken."""

    def wait_reduced(self) -> None:
        """Block until the gradients of the step are reduced."""

    def present(self) -> Sequence[Tensor | None]:
        """Return the gradients of the present part, in the same order on all ranks."""

    def drop(self) -> None:
        """Forget the gradients of the present part."""


def check_virtual_ranks(
    module: nn.Module, virtual_ranks: object, seed: object, communicate: object
) -> None:
    """Raise UsageError unless a model can be trained with so many virtual ranks."""
    if not (isinstance(virtual_ranks, int) and virtual_ranks >= 1):
        raise UsageError(f"virtual_ranks must be a positive whole number, not {virtual_ranks!r}")
    if not isinstance(seed, int):
        raise UsageError(f"seed must be a whole number, not {seed!r}")
    if communicate is not None:
        raise UsageError(
            f"communicate={communicate} rounds sums once in the order of the ranks; with "
            "virtual_ranks gradients travel in their own type: leave communicate out"
        )
    for name, each in module.named_modules():
        if isinstance(each, nn.SyncBatchNorm):
            raise UsageError(
                f"{name!r} is a SyncBatchNorm, whose statistics depend on the ranks: with "
                "virtual_ranks use BatchNorm, whose buffers are averaged over the virtual ranks"
            )


class VirtualRank:
    """A virtual rank of a step, as a context in which its part of the step is computed."""

    def __init__(
        self, ranks: "VirtualRanks", step: int, number: int, *, probe: bool = False
    ) -> None:
        self._ranks = ranks
        self.step = step
        """The step's number, from 0."""
        self.number = number
        """The virtual rank's number, from 0."""
        self.probe = probe
        """Whether the part is computed once more, in the first step, so that the ranks can compare
        their bits: its gradients do not count, and neither should its loss in a sum of losses."""
        self.entered = False
        """Whether the virtual rank was used in a `with` statement."""
        self._weight: float | None = None

    @property
    def weight(self) -> float | None:
        """The weight of this virtual rank's loss, such as its number of tokens; None until set.

        With `DataParallel(weighted=True)` the loss of each virtual rank is a sum, and the gradient
        is the sum over all virtual ranks, divided once by the sum of all weights. Set the weight
        within the `with` statement: before backward, so that it travels while gradients are
        computed. A tensor of one element is accepted; on a device the host waits for it. Raises
        UsageError without `weighted=True`, outside of the `with` statement, for a second weight,
        and for a number that is not finite or below 0.
        """
        return self._weight

    @weight.setter
    def weight(self, value: float | Tensor) -> None:
        self._weight = self._ranks.weigh(self, value)

    def indices(self, length: int, *, batch: int) -> Tensor:
        """Return the indices of this virtual rank's samples in a data set of so many samples.

        `batch` is the number of samples of the whole step. In each epoch of `length // batch` steps
        no sample comes twice, and the last `length % batch` samples of the epoch's order are left
        out. The result is an int64 tensor of `batch // virtual_ranks` indices. It depends on the
        seed, the step and the virtual rank alone. Raises UsageError if the batch cannot be divided
        by the virtual ranks, or is longer than the data set.
        """
        return self._ranks.indices(self.step, self.number, length, batch)

    def __enter__(self) -> "VirtualRank":
        if self.entered:
            raise UsageError(f"virtual rank {self.number} of step {self.step} was entered twice")
        self.entered = True
        self._ranks.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ranks.leave(self, failed=kind is not None)


class VirtualRanks:
    """The virtual ranks of a wrapped model on this rank."""

    def __init__(
        self,
        module: nn.Module,
        exchange: "NodeExchange",
        seed: int,
        reducers: Sequence[PartGradients],
        synchronize: Callable[[bool], None],
        recorder: Recorder,
        *,
        key: int,
        divide: Callable[[Divisor], None] | None = None,
    ) -> None:
        """Divide steps into the virtual ranks of `exchange`, which has this rank's run of them.

        `synchronize` sets whether backward passes start reductions. `recorder` is told of waits for
        buffers. `key` is the first of len(FLOATS) + 1 keys of
        the exchange that nothing else uses. With `divide` each virtual rank must have a weight, and
        `divide` is given the sum of a step's weights before the step's gradients are computed.
        """
        self.count = exchange.virtual_ranks
        self.seed = seed
        self.next_step = 0
        """The number of the step after the latest one whose parts have ended."""
        self._exchange = exchange
        self._reducers = reducers
        self._synchronize = synchronize
        self._recorder = recorder
        self.evidence: Evidence | None = None
        """What the training shows of its bits; None for nothing."""
        self._random = ExitStack()
        self._generators = _generators(module)
        self._order: tuple[tuple[int, int], Tensor] | None = None
        """The latest epoch and length, with the order of its samples."""
        self._buffers = _Buffers(module, exchange, key)
        self._divide = divide
        self._weights = Weights(exchange, key + len(FLOATS)) if divide is not None else None
        flats = [] if self._weights is None else [self._weights.flat]
        self._wholes = [Whole(flat) for flat in (*self._buffers.flats, *flats)]
        """What each virtual rank adds besides its gradients."""
        self._current: VirtualRank | None = None

    @property
    def run(self) -> range:
        """The numbers of this rank's virtual ranks."""
        return self._exchange.run

    @property
    def probes(self) -> bool:
        """Whether the next step begins with virtual rank 0 on each rank, for a comparison."""
        return self.evidence is not None and self.evidence.exact is None

    def share(self, text: bytes) -> list[bytes]:
        """Gather one byte string from each rank; return them in rank order. Blocks."""
        return self._exchange.share(text)

    def parts(self, step: int) -> Iterator[VirtualRank]:
        """Yield this rank's virtual ranks of a step; each must be used in a `with` statement."""
        if not (isinstance(step, int) and step >= 0):
            raise UsageError(f"step must be a whole number from 0 on, not {step!r}")
        self._exchange.begin()
        buffers = self._buffers.begin()
        if self._weights is not None and self._divide is not None:
            self._divide(self._weights.begin(step))
        parts = [VirtualRank(self, step, number) for number in self._exchange.run]
        if self.evidence is not None:
            self.evidence.step_began(buffers)
        if self.probes:
            parts.insert(0, VirtualRank(self, step, 0, probe=True))
        for part in parts:
            yield part
            if not part.entered:
                raise UsageError(
                    f"virtual rank {part.number} of step {step} was not used: compute its "
                    "gradients in `with part:`"
                )

    def enter(self, part: VirtualRank) -> None:
        """Prepare random numbers, buffers and gradients for a virtual rank."""
        if self._current is not None:
            raise UsageError(
                f"virtual rank {part.number} was entered before {self._current.number} had ended"
            )
        self._current = part
        last = self._last(part)
        if last:
            for reducer in self._reducers:
                reducer.reset_step()
            self._exchange.expect_last()
        self._synchronize(last)
        self._buffers.restore()
        seed = seed_of("numbers", self.seed, part.step, part.number)
        numbers = random_numbers(seed, self._generators)
        self._random.enter_context(numbers)
        if self.evidence is not None and not part.probe:
            self.evidence.part_began(part.step, part.number)

    def leave(self, part: VirtualRank, *, failed: bool) -> None:
        """Take the gradients and the buffers of a virtual rank."""
        self._random.close()
        self._synchronize(True)
        self._current = None
        if failed:
            return
        if self._weights is not None and part.weight is None:
            raise UsageError(
                f"virtual rank {part.number} of step {part.step} has no weight: set part.weight in "
                "`with part:`, for example to its number of tokens"
            )
        if any(reducer.extra for reducer in self._reducers):
            raise UsageError(
                f"virtual rank {part.number} of step {part.step} has had several backward passes "
                "to the same parameters: add the losses, and call backward once"
            )
        evidence = self.evidence
        if evidence is not None and part.probe:
            evidence.probed()
            for reducer in self._reducers:
                reducer.drop()
            return
        if evidence is not None:
            evidence.part_ended()
        self._buffers.pack(first=part.number == 0)
        if self._last(part):
            if evidence is not None:
                evidence.step_ended(part.step)
            began = self._recorder.clock()
            self._buffers.average()
            self._recorder.waited(began, parameters=0)
            self.next_step = part.step + 1
        else:
            self._finish(part)
            self._fold()

    def weigh(self, part: VirtualRank, value: float | Tensor) -> float:
        """Take the weight of a virtual rank; that of the last one begins the sum of all."""
        if self._weights is None:
            raise UsageError(
                f"part.weight = {value} needs DataParallel(weighted=True); without it, gradients "
                "are averaged over the virtual ranks"
            )
        if part is not self._current or part.weight is not None:
            raise UsageError(
                f"set the weight of virtual rank {part.number} once, in `with part:`, not to "
                f"{value}"
            )
        return self._weights.add(value, last=self._last(part))

    def indices(self, step: int, number: int, length: int, batch: int) -> Tensor:
        """See VirtualRank.indices."""
        if not (isinstance(batch, int) and batch >= 1 and batch % self.count == 0):
            raise UsageError(
                f"batch must be a multiple of {self.count} virtual ranks, not {batch!r}: each "
                "virtual rank has as many samples"
            )
        if batch > length:
            raise UsageError(f"batch must be at most the {length} samples of the data, not {batch}")
        epoch, place = divmod(step, length // batch)
        if self._order is None or self._order[0] != (epoch, length):
            generator = torch.Generator(device="cpu")
            generator.manual_seed(seed_of("order", self.seed, epoch))
            self._order = (
                (epoch, length),
                torch.randperm(length, generator=generator, dtype=torch.int64, device="cpu"),
            )
        each = batch // self.count
        first = place * batch + number * each
        return self._order[1][first : first + each]

    def _last(self, part: VirtualRank) -> bool:
        """Return whether a part is the step's last one on this rank."""
        return not part.probe and part.number == self._exchange.run[-1]

    def _finish(self, part: VirtualRank) -> None:
        """Complete the gradients of a part that is not the last one."""
        for reducer in self._reducers:
            reducer.finish_all()
            if self._exchange.folded:
                continue  # No gradient was left when this step's first part ended.
            for state in reducer.states:
                if state.reduced_before:
                    raise UsageError(
                        f"the gradient of {state.name!r} is left from the step before "
                        f"{part.step}: call zero_grad() before the parts of the next step"
                    )

    def _fold(self) -> None:
        """Take the gradients of a virtual rank that is not the last one as a node of the tree."""
        states = [state for reducer in self._reducers for state in reducer.states]
        self._exchange.fold([*states, *self._wholes])


class _Buffers:
    """The buffers of a model: equal at the beginning of each virtual rank, averaged at the end.

    Buffers of other types than floating point, such as a count of batches, are those of virtual
    rank 0.
    """

    def __init__(self, module: nn.Module, exchange: "NodeExchange", key: int) -> None:
        """Allocate memory for the buffers that the module has now, whose sums use keys from `key`.

        There is a key for each type in FLOATS.
        """
        self._exchange = exchange
        self._places = Places(module)
        self._before: list[Tensor] = []
        self._first: list[Tensor] = []
        """The buffers of other types after virtual rank 0, if it is this rank's."""
        floats, _ = self._all()
        kinds = {each.dtype: each for each in floats}
        counts = [sum(e.numel() for e in floats if e.dtype is kind) for kind in kinds]
        self.flats = exchange.allocate(list(zip(counts, kinds, strict=True)))
        """The sum's tensor of each floating-point type."""
        self._posts = [
            exchange.reduction(key + FLOATS.index(flat.dtype), flat, average=True)
            for flat in self.flats
        ]

    def begin(self) -> dict[int, Tensor]:
        """Keep the buffers at the beginning of a step; return the copies by the buffers' `id`."""
        floats, others = self._all()
        buffers = [*floats, *others]
        if [_form(each) for each in buffers] != [_form(each) for each in self._before]:
            self._before = [torch.empty_like(buffer) for buffer in buffers]
        with torch.no_grad():
            for copy, buffer in zip(self._before, buffers, strict=True):
                copy.copy_(buffer)
        return {id(buffer): copy for buffer, copy in zip(buffers, self._before, strict=True)}

    def restore(self) -> None:
        """Give the buffers the values that they had at the beginning of the step."""
        if not self._before:
            return
        floats, others = self._all()
        with torch.no_grad():
            for buffer, before in zip((*floats, *others), self._before, strict=True):
                buffer.copy_(before)

    def pack(self, *, first: bool) -> None:
        """Copy the buffers of a virtual rank to `flats`; `first` if it is the first of all."""
        if not self._before:
            return
        floats, others = self._all()
        if first:
            self._first = [buffer.clone() for buffer in others]
        with torch.no_grad():
            for flat in self.flats:
                mine = [each.reshape(-1) for each in floats if each.dtype is flat.dtype]
                torch.cat(mine, out=flat)

    def average(self) -> None:
        """Replace the buffers by the averages over all virtual ranks; block until they are here."""
        floats, others = self._all()
        pending = [post(0) for post in self._posts]
        for each in pending:
            each.wait()
        with torch.no_grad():
            for flat in self.flats:
                mine = [each for each in floats if each.dtype is flat.dtype]
                parts = torch.split(flat, [each.numel() for each in mine])
                for buffer, values in zip(mine, parts, strict=True):
                    buffer.copy_(values.view(buffer.shape))
            if others:
                shared = self._first or [torch.empty_like(buffer) for buffer in others]
                self._exchange.broadcast(shared)
                for buffer, value in zip(others, shared, strict=True):
                    buffer.copy_(value)

    def _all(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the buffers of floating-point types, and the others."""
        every = self._places.tensors()
        return (
            [buffer for buffer in every if buffer.dtype in FLOATS],
            [buffer for buffer in every if buffer.dtype not in FLOATS],
        )


def _form(tensor: Tensor) -> tuple[torch.dtype, torch.Size, torch.device]:
    return tensor.dtype, tensor.shape, tensor.device


def seed_of(*of: object) -> int:
    """Return a seed for torch that depends on all arguments."""
    text = "/".join(map(str, of)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


@contextmanager
def random_numbers(seed: int, generators: Sequence[torch.Generator] = ()) -> Iterator[None]:
    """Let torch's random numbers begin with a seed; restore their states at the end.

    They are those of the CPU's default generator and of further `generators`.
    """
    every = [torch.default_generator, *generators]
    before = [generator.get_state() for generator in every]
    for generator in every:
        generator.manual_seed(seed)
    try:
        yield
    finally:
        for generator, state in zip(every, before, strict=True):
            generator.set_state(state)


def _generators(module: nn.Module) -> list[torch.Generator]:
    """Return the default generator of each device that a model uses, but for the CPU.

    Raises UsageError for a device whose generators torch does not show.
    """
    tensors = itertools.chain(module.parameters(), module.buffers())
    devices = {each.device for each in tensors if each.device.type not in ("cpu", "meta")}
    found = list[torch.Generator]()
    for device in sorted(devices, key=str):
        backend: Any = torch.get_device_module(device)
        if not hasattr(backend, "default_generators"):
            raise UsageError(
                f"virtual ranks cannot set the random numbers of {device}: move the model to the "
                "CPU or to a CUDA device"
            )
        index = backend.current_device() if device.index is None else device.index
        found.append(backend.default_generators[index])
    return found
