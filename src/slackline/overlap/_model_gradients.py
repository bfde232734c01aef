"""Set-up and removal of a model's reductions: hooks, lazy parameters, patched optimizers."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from slackline.errors import MismatchError, UsageError
from slackline.overlap import _manifest
from slackline.overlap._attach import all_parameters, attach, detach
from slackline.overlap._optimizer_patch import OptimizerPatch
from slackline.overlap._partial_step import raw_groups
from slackline.overlap._recorder import Recorder
from slackline.overlap.exchange import Exchange, is_dense
from slackline.overlap.reduction import (
    Divisor,
    GradientReducer,
    Grouping,
    ParameterState,
    ReadTracker,
    clear_grad,
    flat_request,
)

__all__ = ["ModelGradients", "agree_and_copy"]


def agree_and_copy(
    module: nn.Module,
    holders: dict[int, int],
    exchange: Exchange,
    options: str = "",
) -> None:
    """Check that all ranks have the same model, then copy rank 0's values to every rank.

    `holders` maps a parameter's `id` to the index of its optimizer, and `options` has the wrapper's
    options that must be equal. Blocks on all ranks. If the models or the options differ, raises
    MismatchError on every rank, with the first rank and tensor that differ.
    """
    mine = _manifest.manifest(module, holders)
    texts = exchange.share(_manifest.encode(mine, options))
    manifests, given = zip(*map(_manifest.decode, texts), strict=True)
    for peer, other in enumerate(given):
        if other != given[0]:
            text = (
                "the ranks must wrap the model with the same options, but rank "
                f"{peer} has {other} where rank 0 has {given[0]}"
            )
            raise MismatchError(text, rank=exchange.rank, peer=peer)
    found = _manifest.difference(manifests)
    if found is not None:
        peer, sentence = found
        text = f"the ranks must wrap the same model, but {sentence}"
        raise MismatchError(text, rank=exchange.rank, peer=peer)
    tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    dense = [tensor if is_dense(tensor) else tensor.contiguous() for tensor in tensors]
    exchange.broadcast(dense)
    with torch.no_grad():
        for tensor, copied in zip(tensors, dense, strict=True):
            if copied is not tensor:
                tensor.copy_(copied)


class ModelGradients:
    """The gradients of one wrapped model; `close` restores the model and its optimizers."""

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        exchange: Exchange,
        recorders: Sequence[Recorder],
        *,
        average: bool,
        group_bytes: int | None,
        contributions: int,
    ) -> None:
        """Register hooks, replace optimizer methods and make the module's parameters lazy.

        `exchange` must have one key for each parameter and two keys for each optimizer.
        `group_bytes` None finds the size of groups by trial. `contributions` is the number of
        gradients of a parameter that are summed: of the ranks, or of the virtual ranks.
        """
        self.tracker = ReadTracker()
        self._module = module
        self._exchange = exchange
        self._optimizers = optimizers
        self._places = {
            id(parameter): (index, name)
            for index, (name, parameter) in enumerate(module.named_parameters())
        }
        keys = range(len(self._places), len(self._places) + 2 * len(optimizers), 2)
        eager = exchange.matches_by_key or len(optimizers) == 1
        self._blocks = 0
        # A low-precision sum rounds the count of ranks with a gradient; half a rank is the margin.
        self._most = (1 - 0.5 / contributions) * (1 if average else contributions)
        self._reducers = [
            GradientReducer(
                optimizer,
                exchange,
                Grouping(exchange, recorder, key=key + 1, average=average, group_bytes=group_bytes),
                self.tracker.model,
                recorder,
                key=key,
                eager=eager,
            )
            for optimizer, recorder, key in zip(optimizers, recorders, keys, strict=True)
        ]
        self.tracker.reducers = self._reducers
        self.adopt()
        self._patches = [
            OptimizerPatch(optimizer, reducer, self.tracker, recorder, self.adopt)
            for optimizer, reducer, recorder in zip(
                optimizers, self._reducers, recorders, strict=True
            )
        ]
        self._handles = attach(module, self.tracker)

    @property
    def keys(self) -> int:
        """The number of the exchange's keys that are in use: the first ones."""
        return len(self._places) + 2 * len(self._optimizers)

    @property
    def reducers(self) -> Sequence[GradientReducer]:
        """The reducer of each optimizer's gradients."""
        return self._reducers

    @property
    def group_bytes(self) -> int:
        """The most bytes of gradients in one reduction of the first optimizer."""
        return self._reducers[0].tuning.group_bytes

    @property
    def trial_result(self) -> str:
        """The result of the first optimizer's latest trial of group sizes."""
        return self._reducers[0].tuning.result

    def adopt(self) -> None:
        """Create a ParameterState for each trainable parameter of an optimizer that has none yet.

        All ranks must call this method with the same new parameters.
        """
        owners = self.tracker.owners
        for optimizer, reducer in zip(self._optimizers, self._reducers, strict=True):
            new: list[tuple[int, Tensor]] = [
                (number, parameter)
                for number, (_, parameters) in enumerate(raw_groups(optimizer))
                for parameter in parameters
                if id(parameter) not in owners and parameter.requires_grad
            ]
            if not new:
                continue
            # A backward computes gradients in about the reverse order of registration, and
            # gradients of one group should arrive at about the same time.
            placed = sorted(
                ((*self._place(parameter), number, parameter) for number, parameter in new),
                key=lambda each: (str(each[3].dtype), -each[0]),
            )
            flats = self._exchange.allocate([flat_request(each[3]) for each in placed])
            self._blocks += 1
            states = [
                ParameterState(*each, flat, self._blocks, most=self._most)
                for each, flat in zip(placed, flats, strict=True)
            ]
            self.tracker.owners.update({id(state.parameter): (reducer, state) for state in states})
            reducer.add(states)

    def divide_by(self, divisor: Divisor) -> None:
        """Divide the results of the reductions that are posted from now on."""
        for reducer in self._reducers:
            reducer.divide_by(divisor)

    def expect(self) -> None:
        """Prepare all gradients for additions outside autograd, which no hook reports."""
        for reducer in self._reducers:
            reducer.expect()

    def complete(self, parameters: Iterable[Tensor]) -> None:
        """Post these parameters' gradients, which were completed outside autograd."""
        for parameter in parameters:
            owner = self.tracker.owners.get(id(parameter))
            if owner is not None:
                reducer, state = owner
                reducer.complete(state)

    def wait_reduced(self) -> None:
        """Block until every gradient is reduced, and take every pending optimizer step."""
        for reducer in self._reducers:
            reducer.wait_reduced()

    def clip(self, max_norm: float, norm_type: float, *, error_if_nonfinite: bool) -> Tensor:
        """Do what torch.nn.utils.clip_grad_norm_ does; return the norm that the gradients had."""
        parameters = list({id(each): each for each in all_parameters(self._module)}.values())
        if len({(each.dtype, each.device) for each in parameters}) == 1:
            norms = self._norms(parameters, norm_type)
            if norms:
                total: Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
                if not error_if_nonfinite or bool(total.isfinite()):
                    nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
                    return total
        self.wait_reduced()
        return nn.utils.clip_grad_norm_(
            parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )

    def _norms(self, parameters: Sequence[Tensor], norm_type: float) -> list[Tensor]:
        """Return the norm of each gradient that is not None, in the order of `parameters`.

        A norm is computed as soon as its gradient is reduced, while others are still under way, and
        does not depend on the gradient groups.
        """
        found: dict[int, Tensor] = {}

        def add(some: Iterable[Tensor]) -> None:
            grads = {id(each): each.grad for each in some if each.grad is not None}
            norms = torch._foreach_norm(list(grads.values()), norm_type) if grads else ()
            found.update(zip(grads, norms, strict=True))

        with torch.no_grad():
            for reducer in self._reducers:
                for states in reducer.as_reduced():
                    add(state.parameter for state in states)
            add(each for each in parameters if id(each) not in self.tracker.owners)
        return [found[id(each)] for each in parameters if id(each) in found]

    def zero_grad(self, set_to_none: bool) -> None:
        """Clear the gradients of all parameters, including those that no optimizer holds."""
        for patch in self._patches:
            patch.zero_grad(set_to_none)
        for parameter in self._module.parameters():
            if id(parameter) not in self.tracker.owners:
                clear_grad(parameter, set_to_none=set_to_none)

    def close(self) -> None:
        """Finish all optimizer steps, restore module and optimizers, free the gradient buffers."""
        try:
            for reducer in self._reducers:
                reducer.close()
        finally:
            self._let_go()
        self._exchange.release()

    def abandon(self) -> None:
        """Restore module and optimizers without finishing any optimizer step or reduction.

        The gradient buffers are not freed while a reduction may still use them.
        """
        ended = [reducer.abandon() for reducer in self._reducers]
        self._let_go()
        if all(ended):
            self._exchange.release()

    def _let_go(self) -> None:
        for patch in self._patches:
            patch.release()
        detach(self._module, self._handles)
        self.tracker.owners.clear()

    def _place(self, parameter: Tensor) -> tuple[int, str]:
        place = self._places.get(id(parameter))
        if place is None:
            shape = "x".join(map(str, parameter.shape))
            raise UsageError(f"the optimizer holds a parameter ({shape}) that the model lacks")
        return place
