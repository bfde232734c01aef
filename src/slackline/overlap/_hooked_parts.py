"""Virtual ranks for models that torch's own wrappers reduce: what those wrappers have in common."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from torch import distributed as dist
from torch import nn
from torch.optim import Optimizer

from slackline.env import Environment
from slackline.errors import MismatchError, UsageError
from slackline.overlap._notes import Notes
from slackline.overlap._recorder import Recorder
from slackline.overlap._virtual_ranks import (
    FLOATS,
    PartGradients,
    VirtualRank,
    VirtualRanks,
    check_virtual_ranks,
)
from slackline.overlap.exchange import open_exchange

if TYPE_CHECKING:
    from slackline.overlap.exchange import NodeExchange

__all__ = ["Gradients", "HookedParts"]


class Gradients(PartGradients, Protocol):
    """The gradients of a model in one of torch's wrappers."""

    def synchronize(self, last: bool) -> None:
        """Prepare for the gradients of a virtual rank, which is this rank's last one or not."""

    def detach(self) -> None:
        """Let no gradient use the exchange's memory, which is about to be freed."""


class HookedParts:
    """The virtual ranks of a model whose gradients one of torch's wrappers hands to a hook."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        group: "dist.ProcessGroup",
        gradients: "Callable[[NodeExchange], Gradients]",
        *,
        virtual_ranks: int,
        seed: int,
        exact: bool,
        hash_every: int,
    ) -> None:
        """Divide steps into virtual ranks; `gradients` registers the hook with the exchange.

        All ranks make the call. Raises UsageError for a model or a group that cannot have virtual
        ranks, and MismatchError if the ranks have other numbers.
        """
        check_virtual_ranks(module, virtual_ranks, seed, None)
        for name, parameter in module.named_parameters():
            if parameter.device.type != "cpu":
                raise UsageError(
                    f"{name!r} is on {parameter.device}: the virtual ranks of torch's own wrappers "
                    "need a model in the CPU's memory; DataParallel also takes one on a device"
                )
        exchange: Any = open_exchange(
            module, group, spare_keys=len(FLOATS), virtual_ranks=virtual_ranks
        )
        self._module = module
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self._exchange = cast("NodeExchange", exchange)
        _agree(self._exchange, f"virtual_ranks={virtual_ranks}, seed={seed}")
        from slackline.overlap.certificate import Evidence  # Most models need none.

        environment = Environment.read()
        self._notes = Notes(dist.get_rank(), environment.telemetry)
        self._evidence = Evidence(
            module,
            self._optimizers,
            self._exchange,
            self._notes,
            exact=exact,
            hash_every=hash_every,
            recorded=environment.tensor_hashes if hash_every else None,
        )
        self._gradients = gradients(self._exchange)
        self._evidence.attach([self._gradients])
        self._virtual = VirtualRanks(
            module,
            self._exchange,
            seed,
            [self._gradients],
            self._gradients.synchronize,
            Recorder(exchange.rank, 0, _nothing),
            key=sum(1 for _ in module.parameters()),
        )
        self._virtual.evidence = self._evidence

    def parts(self, step: int) -> Iterator[VirtualRank]:
        """Yield this rank's virtual ranks of a training step; see `DataParallel.parts`.

        Raises UsageError if a gradient is left from the step before.
        """
        for name, parameter in self._module.named_parameters():
            if parameter.grad is not None:
                raise UsageError(
                    f"the gradient of {name!r} is left from the step before: call "
                    "zero_grad(set_to_none=True) before the parts of the next step"
                )
        return self._virtual.parts(step)

    @property
    def hash(self) -> str:
        """The hash of all parameters, buffers and optimizer states; see `DataParallel.hash`."""
        self._evidence.ended()
        from slackline.overlap.certificate import state_hash  # Most models need no hash.

        return state_hash(self._module, self._optimizers)

    @property
    def exact(self) -> bool:
        """Whether all ranks have computed the same bits; see `DataParallel.exact`."""
        return self._evidence.exact is not False

    def close(self) -> None:
        """Free the memory of the sums; the model cannot be trained with virtual ranks any more."""
        self._evidence.close()
        self._notes.close()
        self._gradients.detach()
        self._exchange.release()


def _agree(exchange: "NodeExchange", options: str) -> None:
    """Raise MismatchError unless all ranks have the same options."""
    texts = [text.decode() for text in exchange.share(options.encode())]
    for peer, text in enumerate(texts):
        if text != texts[0]:
            raise MismatchError(
                "the ranks must divide a step alike, but rank "
                f"{peer} has {text} where rank 0 has {texts[0]}",
                rank=exchange.rank,
                peer=peer,
            )


def _nothing(_: object) -> None:
    """Keep no summary of a step."""
