"""Virtual ranks for a model that torch's fully_shard (FSDP2) has sharded, by its reduce-scatter.

    all parts but the last   input of the reduce-scatter ──▶ a node of the tree; the output is zeros
    the last part            input ──▶ this rank's nodes reduced in the tree ──▶ this rank's shard

FSDP2 accumulates the gradients of a rank's parts from left to right, which depends on the number of
ranks. So each part's gradients go through the reduce-scatter, and `grad` is None before the next
part begins. One rank alone reduces nothing in FSDP2: its gradients are taken out of `grad`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from slackline.errors import UsageError
from slackline.overlap._hooked_parts import HookedParts

if TYPE_CHECKING:
    from slackline.overlap.exchange import NodeExchange, Pending

__all__ = ["FSDPParts"]


class FSDPParts(HookedParts):
    """The virtual ranks of a model that fully_shard has sharded over one dimension of ranks.

        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        parallel = FSDPParts(model, optimizer, virtual_ranks=8, seed=0)
        for step in range(steps):
            for part in parallel.parts(step):
                with part:
                    x = data[part.indices(len(data), batch=256)]
                    loss(model(x)).backward()
            optimizer.step()
            optimizer.zero_grad()

    Parameters, buffers and the optimizer's state get the same bits on any number of ranks that
    divides the number of virtual ranks: those of DataParallel, but for a parameter that no part
    uses, whose gradient is zeros here and None there. Each rank receives the sum of whole gradients
    and keeps its shard, which is twice the bytes of a reduce-scatter, and keeps whole gradients as
    waiting sums. torch's clip_grad_norm_ adds the norms of shards, and so has other bits on other
    numbers of ranks.
    """

    def __init__(
        self,
        model: FSDPModule,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        virtual_ranks: int,
        seed: int = 0,
        exact: bool = True,
    ) -> None:
        """Replace the reduce-scatter of a model and of all modules in it that are sharded.

        The model is in the CPU's memory, and its mesh has one dimension, of the backend slackline.
        All ranks make the call. Raises UsageError for another model or mesh, for a torch whose
        FSDP2 leaves unused parameters out, for a number of virtual ranks that the ranks do not
        divide, for a fused optimizer, and for a model with SyncBatchNorm, and MismatchError if the
        ranks have other numbers of virtual ranks or seeds. `exact` is as in DataParallel; states
        after steps are not hashed, since no rank has whole tensors.
        """
        module: Any = model
        group = _group_of(module)
        if isinstance(virtual_ranks, int) and virtual_ranks % group.size():
            raise UsageError(
                f"virtual_ranks={virtual_ranks} must be a multiple of the {group.size()} ranks: "
                "those of FSDP2 gather the parameters of each part together. Use DataParallel, "
                "DDPParts or another number"
            )

        def register(exchange: "NodeExchange") -> _ShardedGradients:
            return _ShardedGradients(model, exchange)

        for each in [optimizer] if isinstance(optimizer, Optimizer) else optimizer:
            if any(settings.get("fused") for settings in each.param_groups):
                raise UsageError(
                    f"{type(each).__name__}(fused=True) rounds the last elements of a shard "
                    "otherwise, and shards depend on the number of ranks: use foreach=True"
                )
        super().__init__(
            module,
            optimizer,
            group,
            register,
            virtual_ranks=virtual_ranks,
            seed=seed,
            exact=exact,
            hash_every=0,
        )


class _ShardedGradients:
    """The gradients of a sharded model: the inputs of its modules' reduce-scatters."""

    updating = False

    def __init__(self, model: FSDPModule, exchange: "NodeExchange") -> None:
        self._model: Any = model
        self._modules = [
            _Module(name, module, own, exchange, key=key)
            for key, (name, module, own) in enumerate(_sharded(model))
        ]

    @property
    def states(self) -> Sequence["_Module"]:
        """The modules whose gradients have come in this step or an earlier one."""
        return [module for module in self._modules if module.arrived]

    @property
    def extra(self) -> bool:
        """Whether a part's gradients have come twice."""
        return any(module.times > 1 for module in self._modules)

    def synchronize(self, last: bool) -> None:
        if not last:
            self._begin(last=False)

    def reset_step(self) -> None:
        self._begin(last=True)

    def finish_all(self) -> None:
        """Clear the zeros that a part without a reduction leaves in `grad`."""
        for parameter in self._model.parameters():
            parameter.grad = None

    def wait_reduced(self) -> None:
        """Do nothing: the backward pass ends when its gradients are reduced."""

    def present(self) -> list[Tensor | None]:
        return [module.flat if module.times else None for module in self._modules]

    def drop(self) -> None:
        self.finish_all()

    def detach(self) -> None:
        """Do nothing: no gradient uses the exchange's memory."""

    def _begin(self, *, last: bool) -> None:
        for module in self._modules:
            module.begin(last=last)


class _Module(ReduceScatter):
    """The reduce-scatter of one sharded module."""

    reduced_before = False

    def __init__(
        self,
        name: str,
        module: FSDPModule,
        parameter: Tensor,
        exchange: "NodeExchange",
        *,
        key: int,
    ) -> None:
        """Replace a module's reduce-scatter; `parameter` is one of the module's own parameters."""
        self.name, self.parameter = name, parameter
        self.flat: Tensor = torch.empty(0, dtype=torch.float32, device="cpu")
        """The gradients of the present part, in the layout of the reduce-scatter's input."""
        self.times = 0
        """How often gradients have come in the present part."""
        self._exchange, self._key = exchange, key
        self._post: Callable[[int], Pending] | None = None
        self._last = False
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
        module.set_reduce_scatter_unused_params(True, recurse=False)
        if exchange.size > 1:
            module.set_custom_reduce_scatter(self)
        else:
            module.set_all_reduce_hook(lambda whole: self._take(whole, whole))

    @property
    def arrived(self) -> bool:
        """Whether gradients have ever come."""
        return self._post is not None

    def begin(self, *, last: bool) -> None:
        """Prepare for a part."""
        self.times, self._last = 0, last

    def take(self) -> Tensor:
        """Return the gradients of the present part, zeros if it has none."""
        return self.flat if self.times else self.flat.zero_()

    def body_in(self, flat: Tensor) -> Tensor:
        return flat

    def tell(self, flat: Tensor, count: int, targets: list[Tensor], sources: list[Tensor]) -> None:
        """Do nothing: each part has gradients or zeros."""

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        self._take(input_tensor, output_tensor)

    def _take(self, whole: Tensor, shard: Tensor) -> None:
        """Take the gradients of a part; give this rank's shard of the average to the last one."""
        if self._post is None:
            if self._exchange.folded:
                raise UsageError(
                    f"the module {self.name!r} must have gradients in the first part of a rank's "
                    "first step"
                )
            (self.flat,) = self._exchange.allocate([(whole.numel(), whole.dtype)])
            self._post = self._exchange.reduction(self._key, self.flat, average=True)
        self.times += 1
        self.flat.copy_(whole)
        if not self._last:
            shard.zero_()
        elif self.times == 1:
            self._post(0).wait()
            shard.copy_(self.flat.view(-1, shard.numel())[self._exchange.rank])


def _sharded(model: Any) -> Iterator[tuple[str, FSDPModule, Tensor]]:
    """Yield each sharded module that has parameters of its own: its name, itself, and one of them.

    A module's parameters that a sharded module within it has are not its own.
    """
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            within: Any = module
            inner = {
                id(each)
                for other in within.modules()
                if isinstance(other, FSDPModule) and other is not module
                for each in cast("nn.Module", other).parameters()
            }
            own = [each for each in within.parameters() if id(each) not in inner]
            if own:
                yield name, module, own[0]


def _group_of(model: Any) -> dist.ProcessGroup:
    """Return the group of a sharded model; raise UsageError if it cannot have virtual ranks."""
    if not isinstance(model, FSDPModule):
        raise UsageError(
            f"FSDPParts needs a model that fully_shard has sharded, not a {type(model).__name__}"
        )
    if not hasattr(model, "set_reduce_scatter_unused_params"):
        raise UsageError(
            f"FSDPParts needs a torch whose FSDP2 has set_reduce_scatter_unused_params, not "
            f"{torch.__version__}: use DDPParts or DataParallel"
        )
    meshes = set()
    named: Any = model
    for name, parameter in named.named_parameters():
        if not isinstance(parameter, DTensor):
            raise UsageError(
                f"the parameter {name!r} is not sharded: give fully_shard no ignored_params"
            )
        meshes.add(parameter.device_mesh)
    if len(meshes) != 1 or (mesh := meshes.pop()).ndim != 1:
        raise UsageError(
            "FSDPParts needs a model on one mesh of one dimension; with replicas or tensor "
            "parallelism, the sum over the virtual ranks is not one sum"
        )
    return mesh.get_group()
