"""The wrapper: data-parallel training that reduces each parameter's gradient as it is ready."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from slackline.env import Environment
from slackline.errors import UsageError
from slackline.overlap._attach import compiled_parameters
from slackline.overlap._buffers import Buffers
from slackline.overlap._checks import check
from slackline.overlap._model_gradients import ModelGradients, agree_and_copy
from slackline.overlap._open import open_exchange
from slackline.overlap._recorder import Recorder
from slackline.overlap._report import Report
from slackline.telemetry import RunSummary, StepSummary

if TYPE_CHECKING:
    from slackline.nic import Group

__all__ = ["DataParallel"]


class DataParallel(nn.Module):
    """A module whose gradients are reduced over the ranks, parameter by parameter.

        model = slackline.overlap.DataParallel(model, optimizer)

    The rest of the script stays as it is: `model(x)`, `loss.backward()`, `optimizer.step()`,
    `optimizer.zero_grad()`. Each gradient's reduction starts when autograd has it; `step` waits
    for nothing; each parameter takes its step when its sum is there, at the latest when the next
    forward reads it. Whoever reads a parameter or its gradient through the module or the optimizer
    gets finished values. A Parameter object that was kept elsewhere is not watched: call
    `synchronize()` before reading it.

    Every rank constructs it with the same module and optimizers, and calls forward, backward and
    step equally often; which parameters a backward reaches may differ from rank to rank. One
    thread uses it.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        process_group: "dist.ProcessGroup | Group | None" = None,
        average: bool = True,
        broadcast_buffers: bool = True,
        group_bytes: int | None = None,
        telemetry: Path | None = None,
        on_step: Callable[[StepSummary], None] | None = None,
    ) -> None:
        """Checks that the ranks agree, and copies rank 0's parameters and buffers to all.

        `optimizer`: one or several; a trainable parameter that none of them holds is not reduced.
        `process_group`: torch's, of any backend, or a nic's; None is the default group.
        `average` False: gradients are summed.
        `broadcast_buffers`: rank 0's buffers reach all ranks before each training forward.
        `group_bytes`: gradients are reduced in groups of at most this many bytes; 0: each alone;
        None: found by trial in the first hundred steps. Unless sums are taken in rank order, their
        bits may depend on the groups.
        `telemetry`: a directory for this rank's steps; None asks SLACKLINE_TELEMETRY.
        `on_step`: called in the training thread when a step's last parameter is done.

        Raises UsageError for what cannot be wrapped, MismatchError where the ranks differ.
        """
        super().__init__()
        if group_bytes is not None and not (isinstance(group_bytes, int) and group_bytes >= 0):
            raise UsageError(f"group_bytes must be a whole number from 0 on, not {group_bytes!r}")
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        holders = check(module, optimizers)
        exchange = open_exchange(module, process_group, spare_keys=2 * len(optimizers))
        agree_and_copy(module, holders, exchange)
        directory = Environment.read().telemetry if telemetry is None else telemetry
        rank = dist.get_rank() if dist.is_initialized() else exchange.rank
        self._report = Report(exchange, directory, on_step, rank=rank)
        recorders = [Recorder(rank, number, self._report.take) for number in range(len(optimizers))]
        self._recorder = recorders[0]
        follows = (
            broadcast_buffers and exchange.size > 1 and next(module.buffers(), None) is not None
        )
        self._followers = Buffers(module, exchange) if follows else None
        self._gradients = ModelGradients(
            module,
            optimizers,
            exchange,
            recorders,
            average=average,
            group_bytes=group_bytes,
        )
        self._tracker = self._gradients.tracker
        self._all_modules = list(module.modules())
        self._closed = False
        self._refuse: Any = torch.compiler.disable(_refuse)  # type: ignore[no-untyped-call]
        self.module = module
        self.training = module.training
        self.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward; waits for each parameter when the module reads it."""
        if torch.compiler.is_compiling():
            self._refuse()
        if not self._closed:
            self._prepare()
        with self._tracker.forward():
            outputs = self.module(*args, **kwargs)
        if torch.is_grad_enabled() and not self._closed:
            self._tracker.count_backwards(outputs)
        return outputs

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles the module; what surrounds it stays as it is."""
        self.module.compile(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards within it add up on this rank alone; the next one outside reduces the sums."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @property
    def require_backward_grad_sync(self) -> bool:
        """What `no_sync` sets to False; under DDP's name because scripts set it themselves."""
        return self._tracker.synchronize

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self._tracker.synchronize = value

    def expect_gradients(self) -> None:
        """Gradients are about to be added to by other hands than autograd's, within `no_sync`."""
        self._gradients.expect()

    def complete_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Nothing more is added to these gradients in this round: their reductions start now.

        For a schedule that computes a step's gradients in parts, after `expect_gradients`. Every
        rank says it once of each parameter that has a gradient.
        """
        self._gradients.complete(parameters)

    def synchronize(self) -> None:
        """Blocks until all gradients are reduced and all steps that were called for are taken."""
        self._gradients.wait_reduced()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """As torch.nn.utils.clip_grad_norm_ on all parameters; waits for all reductions."""
        self._gradients.wait_reduced()
        return nn.utils.clip_grad_norm_(
            self.parameters(), max_norm, norm_type, error_if_nonfinite=error_if_nonfinite
        )

    @property
    def group_bytes(self) -> int:
        """The most bytes of gradients that are reduced together; it changes while it is tried."""
        return self._gradients.group_bytes

    @property
    def trial_result(self) -> str:
        """Why `group_bytes` is what it is, with the times of what was tried; empty before the end
        of the trial, and where there is none.
        """
        return self._gradients.trial_result

    @property
    def last_step(self) -> StepSummary | None:
        """What the last finished step cost; None before the first."""
        return self._report.last_step

    def run_summary(self) -> RunSummary:
        """What the steps so far cost."""
        return self._report.run_summary()

    def close(self) -> None:
        """Finishes all steps and makes module and optimizers plain again; then it only forwards.

        Call it before destroy_process_group if the gradients are still to be read.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._gradients.close()
        finally:
            self._report.close()

    def abandon(self) -> None:
        """Makes module and optimizers plain again without waiting for anybody: what was not reduced
        is thrown away, and gradients are None.

        For a group that has lost a rank. Each parameter has taken the last step or has not, unless
        something had all of them wait for it; see the guide to elastic training.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._gradients.abandon()
        finally:
            self._report.close()

    def __enter__(self) -> "DataParallel":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Closes after a body that ended well, abandons after one that did not."""
        if kind is None:
            self.close()
        else:
            self.abandon()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the optimizer's: after its step for a gradient that is still to be used."""
        if self._closed:
            self.module.zero_grad(set_to_none)
        else:
            self._gradients.zero_grad(set_to_none)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own, without a prefix: it fits the plain module."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """The module's own; each rank loads the same values."""
        if assign:
            raise UsageError("assign=True would replace the parameters that are being reduced")
        return self.module.load_state_dict(state_dict, strict)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """The module's own names, as in `state_dict`."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """The module's own names, as in `state_dict`."""
        return self.module.named_buffers(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """What the wrapper lacks is the module's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "DataParallel":
        raise UsageError("a wrapped model takes part in reductions; copy its .module instead")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError("a wrapped model takes part in reductions; save its .module instead")

    def _prepare(self) -> None:
        self._tracker.use(compiled_parameters(self._all_modules))
        if not (self.training and torch.is_grad_enabled() and self._tracker.synchronize):
            return
        self._gradients.adopt()
        if self._followers is not None:
            begin = self._recorder.clock()
            self._followers.follow_rank_0()
            self._recorder.waited(self._recorder.clock() - begin, parameters=0)


def _refuse() -> None:
    raise UsageError("compile the module and then wrap it, not the other way round")


def _add_prefix(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Lets a module that contains a wrapped one load what its own `state_dict` gave."""
    for key in [key for key in state_dict if key.startswith(prefix)]:
        state_dict[f"{prefix}module.{key[len(prefix) :]}"] = state_dict.pop(key)
