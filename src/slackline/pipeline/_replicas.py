"""Replicas of a stage: FSDP2's modules inside it are served, DDP and FSDP1 are refused.

A pipeline runs one backward for each microbatch, and adds the gradients before they are reduced.
DDP and FSDP1 reduce in hooks of a single backward, so their replicas would diverge.

FSDP2 gathers the shards of parameters before a computation. The ranks that share a stage may run
its computations in different orders, but must post their operations in the same order. So all
parameters are gathered at the beginning of a step, in the order of the modules, and all gradients
are reduced after the last backward of the step. No operation is posted in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from slackline.errors import UsageError

__all__ = ["ShardedModules", "replicas_of"]

_WAY_OUT = (
    "wrap the stage's whole module in slackline.overlap.DataParallel(module, optimizer, "
    "process_group=...), or shard it with torch.distributed.fsdp.fully_shard"
)


def replicas_of(module: nn.Module, stage: int) -> "ShardedModules | None":
    """Return the modules of FSDP2 in a stage's module, or None if it has none.

    Raises UsageError, with the name of the module, for replicas that reduce their gradients in the
    backward of each microbatch.
    """
    sharded: list[Any] = []
    for each in module.modules():
        if isinstance(each, FSDPModule):
            sharded.append(each)
        elif isinstance(each, DistributedDataParallel | FullyShardedDataParallel):
            raise UsageError(
                f"stage {stage}: {_named(module, each)} is a {type(each).__name__}, which reduces "
                f"gradients in the backward of each microbatch: {_WAY_OUT}"
            )
        elif each is not module and hasattr(type(each), "complete_gradients"):
            raise UsageError(
                f"stage {stage}: {_named(module, each)} is a slackline.overlap.DataParallel, which "
                "must wrap the stage's whole module"
            )
    return ShardedModules(sharded) if sharded else None


def _named(module: nn.Module, part: nn.Module) -> str:
    names = [name for name, each in module.named_modules() if each is part]
    return f'its module "{names[0]}"' if names[0] else "its module"


@dataclass(frozen=True, slots=True)
class _Settings:
    """The settings of a parameter group of FSDP2 that a step changes and restores."""

    reduce_grads: bool
    all_reduce_grads: bool
    reshard_after_backward: bool
    post_forward_mesh_info: Any

    @classmethod
    def of(cls, group: Any) -> "_Settings":
        return cls(
            group.reduce_grads,
            group.all_reduce_grads,
            group.reshard_after_backward,
            group.post_forward_mesh_info,
        )

    def apply(self, group: Any) -> None:
        group.reduce_grads = self.reduce_grads
        group.all_reduce_grads = self.all_reduce_grads
        group.reshard_after_backward = self.reshard_after_backward
        group.post_forward_mesh_info = self.post_forward_mesh_info


class ShardedModules:
    """The modules of FSDP2 in a stage, which gather before a step and reduce after it."""

    def __init__(self, modules: list[Any]) -> None:
        """Create the sharded modules of a stage, in which each parent stands before its parts."""
        self._modules = modules
        self._settings: list[tuple[Any, _Settings]] = []

    def free(self) -> None:
        """Free parameters that are still gathered, so that the modules have their shards."""
        for group in self._groups():
            group.reshard()

    def gather(self) -> None:
        """Gather the parameters, which stay gathered during the step, and suspend reductions."""
        for state in self._states():
            # The first module that runs becomes the root, so that must not be left to the forward.
            state._lazy_init()
        self._settings = [(group, _Settings.of(group)) for group in self._groups()]
        for group, settings in self._settings:
            _Settings(False, settings.all_reduce_grads, False, None).apply(group)
        for module in self._modules:
            module.set_is_last_backward(False)
            module.unshard()

    def reduce(self) -> None:
        """Reduce the gradients of the step, unless the user has suspended FSDP2's reductions."""
        for group, settings in self._settings:
            settings.apply(group)
        self._fill_in()
        for state in self._states():
            if state._is_root:
                context = state._state_ctx
                context.is_last_backward = True
                for each in context.all_states:
                    for group in reversed(_groups_of(each)):
                        group.post_backward()
                if hasattr(context, "manual_backward_finalization_active"):
                    # torch 2.15 notes at the root's first backward whether the user will end the
                    # reductions. The pipeline ends them, and a root may have had no backward.
                    context.manual_backward_finalization_active = False
                state._root_post_backward_final_callback()

    def end(self) -> None:
        """Restore the user's settings and free the gathered parameters, also after an error."""
        for group, settings in self._settings:
            settings.apply(group)
        self._settings = []
        self.free()
        for module in self._modules:
            module.set_is_last_backward(True)

    def _fill_in(self) -> None:
        """Give zeros to parameters that have a gradient on other ranks only.

        FSDP2 reduces the gradients that a rank has, so ranks with different gradients, as those of
        a mixture of experts, would post different operations.
        """
        alike: dict[tuple[int, ...], tuple[list[Any], list[Any]]] = {}
        for group in self._groups():
            if group.reduce_grads:
                ranks = [
                    group.mesh_info.mesh.get_group(d) for d in range(group.mesh_info.mesh.ndim)
                ]
                _, parameters = alike.setdefault(tuple(map(id, ranks)), (ranks, []))
                parameters += [each for each in group.fsdp_params if _is_gathered(each)]
        for ranks, parameters in alike.values():
            if not parameters:
                continue
            device = parameters[0].unsharded_param.device
            have = [int(_has_gradient(each)) for each in parameters]
            flags = torch.tensor(have, dtype=torch.int32, device=device)
            for each in ranks:
                dist.all_reduce(flags, dist.ReduceOp.MAX, group=each)
            for parameter, flag in zip(parameters, flags.tolist(), strict=True):
                if flag and not _has_gradient(parameter):
                    unsharded = parameter.unsharded_param
                    unsharded.grad = torch.zeros_like(unsharded, dtype=unsharded.grad_dtype)
                    if hasattr(parameter, "to_accumulated_grad_if_needed"):
                        # Up to torch 2.14 FSDP2 keeps sums of another type beside `grad`.
                        parameter.to_accumulated_grad_if_needed()

    def _states(self) -> Iterator[Any]:
        seen = set()
        for module in self._modules:
            state = module._get_fsdp_state()
            if id(state) not in seen:  # Modules that were sharded together share a state.
                seen.add(id(state))
                yield state

    def _groups(self) -> Iterator[Any]:
        for state in self._states():
            yield from _groups_of(state)


def _is_gathered(parameter: Any) -> bool:
    return hasattr(parameter, "_unsharded_param") and parameter.unsharded_param.requires_grad


def _has_gradient(parameter: Any) -> bool:
    if parameter.unsharded_accumulated_grad is not None:
        return True
    return parameter.unsharded_param.grad is not None


def _groups_of(state: Any) -> list[Any]:
    """Return the parameter groups of a module; torch before 2.13 has at most one."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
