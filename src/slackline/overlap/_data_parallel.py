"""The wrapper for data-parallel training that reduces each gradient as soon as it is ready."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.optim import Optimizer

from slackline.env import Environment
from slackline.errors import UsageError
from slackline.overlap._attach import compiled_parameters
from slackline.overlap._buffers import Buffers
from slackline.overlap._checks import check
from slackline.overlap._ddp_names import without_prefix
from slackline.overlap._model_gradients import ModelGradients, agree_and_copy
from slackline.overlap._report import Report
from slackline.overlap._virtual_ranks import (
    FLOATS,
    VirtualRank,
    VirtualRanks,
    check_virtual_ranks,
)
from slackline.overlap._weights import check_weighted
from slackline.overlap.exchange import Exchange, check_communicate, open_exchange
from slackline.records import RunSummary, StepSummary

if TYPE_CHECKING:
    from slackline.nic import Group
    from slackline.overlap.certificate import Evidence
    from slackline.overlap.exchange import NodeExchange

__all__ = ["DataParallel"]

_UNATTACHED = (
    "the model has no optimizer: call attach(optimizer) after the optimizer was made, and before "
    "the model is trained"
)
_SINCE_ATTACH = ("_evidence", "_gradients", "_tracker", "_report", "_recorder", "_virtual")
"""The attributes that the wrapper has since `attach`."""


@dataclass(frozen=True)
class _Options:
    """The arguments of DataParallel that `attach` uses."""

    process_group: "dist.ProcessGroup | Group | None"
    average: bool
    broadcast_buffers: bool
    group_bytes: int | None
    communicate: torch.dtype | None
    virtual_ranks: int | None
    seed: int
    exact: bool
    hash_every: int
    weighted: bool
    telemetry: Path | None
    on_step: Callable[[StepSummary], None] | None

    @property
    def shared(self) -> str:
        """The options that must be equal on all ranks, as text."""
        names = ["communicate"]
        if self.virtual_ranks is not None:
            names += ["virtual_ranks", "seed", "exact", "hash_every", "weighted"]
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


class DataParallel(nn.Module):
    """A module whose gradients are reduced over the ranks, parameter by parameter.

        model = slackline.overlap.DataParallel(model, optimizer)

    or, in scripts that make the optimizer after DistributedDataParallel:

        model = slackline.overlap.DataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters())
        model.attach(optimizer)

    The rest of the script stays as it is: `model(x)`, `loss.backward()`, `optimizer.step()`,
    `optimizer.zero_grad()`. The reduction of a gradient starts when autograd has computed it.
    `step` does not block: each parameter is updated when its gradient is reduced, at the latest
    when the next forward reads the parameter. A read of a parameter or its gradient through the
    module, the optimizer or a list of parameters returns the finished value.

    Every rank constructs the wrapper with the same module and optimizers, and calls forward,
    backward and step equally often. The parameters that a backward reaches may differ from rank to
    rank. Only one thread may use the wrapper.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        process_group: "dist.ProcessGroup | Group | None" = None,
        average: bool = True,
        broadcast_buffers: bool = True,
        group_bytes: int | None = None,
        communicate: torch.dtype | None = None,
        virtual_ranks: int | None = None,
        seed: int = 0,
        exact: bool = True,
        hash_every: int = 1,
        weighted: bool = False,
        telemetry: Path | None = None,
        on_step: Callable[[StepSummary], None] | None = None,
    ) -> None:
        """Check that all ranks have the same model; copy rank 0's parameters and buffers to all.

        The models must agree in the names, shapes and types of their parameters and buffers.
        `optimizer`: one optimizer or several. The gradient of a trainable parameter that no
        optimizer holds is not reduced. None defers all checks and copies to the call of `attach`,
        and a forward in training mode is refused until then.
        `process_group`: a torch group of any backend, or a NIC engine's Group. None is torch's
        default group.
        `average`: True averages gradients over the ranks, False sums them.
        `broadcast_buffers`: copy rank 0's buffers to all ranks before each training forward.
        `group_bytes`: the most bytes of gradients in one reduction. 0 reduces each gradient alone.
        None reads SLACKLINE_GROUP_BYTES; without that variable the size is found by trial in the
        first hundred steps. If the group does not add in rank order, the last bits of sums may
        depend on the size.
        `communicate`: the type in which gradients of fp32 travel. None is fp32. torch.bfloat16
        sends half the bytes: each rank's gradient is rounded to bf16, the sum (or average) over the
        ranks is computed in fp32 in rank order and rounded to bf16, and `grad` holds the result as
        fp32. A group of any order sums in rank order then. Gradients of 16 bits travel unchanged,
        and with one rank nothing is rounded. All ranks pass the same value.
        `virtual_ranks`: divide each step into so many parts that `parts` gives to the ranks. The
        training then has the same bits on any number of ranks up to this one; see `parts`. Buffers
        are averaged over the parts, and `broadcast_buffers` has no effect.
        `seed`: with `virtual_ranks`, the start of each part's random numbers and samples.
        `exact`: with `virtual_ranks`, refuse ranks that compute other bits from the same samples in
        the first step. False trains on, and marks the run as inexact.
        `hash_every`: with `virtual_ranks`, the number of steps from one hash of the training's
        state to the next in telemetry; 0 for none.
        `weighted`: with `virtual_ranks`, divide the sum of all parts' gradients by the sum of their
        weights, and not by their number. Each part gets a weight, for example its number of tokens:
        `part.weight = tokens`.
        `telemetry`: the directory for this rank's step summaries. None reads SLACKLINE_TELEMETRY.
        `on_step`: called in the training thread when the last parameter of a step is updated, with
        the step's summary, whose `scalars()` is a dictionary of figures for a logger.

        Blocks until all ranks have made the same call. Raises UsageError for a model that cannot be
        wrapped, and with `communicate` for gradients of float64, for a group of a torch backend
        other than slackline, and for more than 256 ranks; with `virtual_ranks` for fewer virtual
        ranks than ranks, for another backend, for `communicate`, and for a model with
        SyncBatchNorm. Raises MismatchError if the ranks' models, or their values of `communicate`,
        `virtual_ranks`, `seed` or `weighted`, differ.
        """
        super().__init__()
        if group_bytes is not None and not (isinstance(group_bytes, int) and group_bytes >= 0):
            raise UsageError(f"group_bytes must be a whole number from 0 on, not {group_bytes!r}")
        check_communicate(communicate)
        if virtual_ranks is not None:
            check_virtual_ranks(module, virtual_ranks, seed, communicate)
        if not (isinstance(hash_every, int) and hash_every >= 0):
            raise UsageError(f"hash_every must be a whole number from 0 on, not {hash_every!r}")
        check_weighted(weighted, virtual_ranks, average)
        self._closed = True
        self._refuse: Any = torch.compiler.disable(_refuse)  # type: ignore[no-untyped-call]
        self.module = module
        self.training = module.training
        self.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]
        self._attached, self._given_later = False, optimizer is None
        self._options = _Options(
            process_group,
            average,
            broadcast_buffers,
            group_bytes,
            communicate,
            virtual_ranks,
            seed,
            exact,
            hash_every,
            weighted,
            telemetry,
            on_step,
        )
        if optimizer is not None:
            self.attach(optimizer)

    def attach(self, optimizer: Optimizer | Sequence[Optimizer]) -> None:
        """Reduce the gradients of one optimizer or several, which the constructor was not given.

        Does everything that the constructor does with an optimizer, and raises the same errors; all
        ranks make the call. Raises UsageError if the wrapper has optimizers already, or if a
        gradient was computed before.
        """
        if self._attached:
            raise UsageError("attach must be called once, with all optimizers, not twice")
        module, options = self.module, self._options
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        holders = check(module, optimizers, options.communicate)
        early = [name for name, each in module.named_parameters() if each.grad is not None]
        if early and self._given_later:
            raise UsageError(
                f"attach must be called before the first backward, but {early[0]!r} has a gradient"
            )
        virtual = options.virtual_ranks
        exchange = open_exchange(
            module,
            options.process_group,
            spare_keys=2 * len(optimizers) + len(FLOATS) + 1,
            communicate=options.communicate,
            virtual_ranks=virtual,
        )
        agree_and_copy(module, holders, exchange, options.shared)
        environment = Environment.read()
        directory = environment.telemetry if options.telemetry is None else options.telemetry
        rank = dist.get_rank() if dist.is_initialized() else exchange.rank
        self._report = Report(exchange, directory, options.on_step, rank=rank)
        group_bytes, origin = options.group_bytes, "argument"
        if group_bytes is None:
            group_bytes = environment.group_bytes
            origin = "default" if group_bytes is None else "environment"
        self._report.group_bytes(group_bytes, origin)
        self._told_trial = ""
        recorders = self._report.recorders(len(optimizers))
        self._recorder = recorders[0]
        follows = (
            options.broadcast_buffers
            and virtual is None
            and exchange.size > 1
            and next(module.buffers(), None) is not None
        )
        self._followers = Buffers(module, exchange) if follows else None
        self._evidence = self._open_evidence(optimizers, exchange, environment.tensor_hashes)
        self._gradients = ModelGradients(
            module,
            optimizers,
            exchange,
            recorders,
            average=options.average and not options.weighted,
            group_bytes=group_bytes,
            contributions=exchange.size if virtual is None else virtual,
        )
        if self._evidence is not None:
            self._evidence.attach(self._gradients.reducers)
            self._virtual = VirtualRanks(
                module,
                cast("NodeExchange", exchange),
                options.seed,
                self._gradients.reducers,
                partial(setattr, self, "require_backward_grad_sync"),
                self._recorder,
                key=self._gradients.keys,
                divide=self._gradients.divide_by if options.weighted else None,
            )
            self._virtual.evidence = self._evidence
        elif environment.state_hash:
            self._report.last_hash = self._last_hash
        self._optimizers = optimizers
        self._tracker = self._gradients.tracker
        self._all_modules = list(module.modules())
        self._closed, self._attached = False, True

    def _open_evidence(
        self, optimizers: Sequence[Optimizer], exchange: Exchange, recorded: range | None
    ) -> "Evidence | None":
        """Return what shows the training's bits; None without virtual ranks."""
        options = self._options
        if options.virtual_ranks is None:
            return None
        from slackline.overlap import certificate  # Most models need no hash.

        return certificate.Evidence(
            self.module,
            optimizers,
            exchange,
            self._report,
            exact=options.exact,
            hash_every=options.hash_every,
            recorded=recorded,
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's forward; a read of a parameter blocks while its update is pending."""
        if torch.compiler.is_compiling():
            self._refuse()
        if not self._attached:
            if self.training and torch.is_grad_enabled():
                raise UsageError(_UNATTACHED)
            return self.module(*args, **kwargs)
        if not self._closed:
            self._prepare()
        began = self._recorder.forward_began()
        with self._tracker.forward():
            outputs = self.module(*args, **kwargs)
        self._recorder.forward_ended(began)
        if torch.is_grad_enabled() and not self._closed:
            self._tracker.count_backwards(outputs)
        return outputs

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the wrapped module with torch.compile; the wrapper's own code is not compiled."""
        self.module.compile(*args, **kwargs)

    def parts(self, step: int) -> Iterator[VirtualRank]:
        """Yield this rank's virtual ranks of a training step, one after the other.

            parallel = DataParallel(model, optimizer, virtual_ranks=8, seed=0)
            for step in range(steps):
                for part in parallel.parts(step):
                    with part:
                        x = data[part.indices(len(data), batch=256)]
                        loss(parallel(x)).backward()
                optimizer.step()
                optimizer.zero_grad()

        The gradient is the average (or sum) over all virtual ranks, added in a fixed binary tree.
        Each virtual rank has random numbers and samples of its own, which depend on the seed, the
        step and its number alone, and begins with the buffers of the step's beginning; afterwards
        floating-point buffers are the averages over the virtual ranks, and other buffers are those
        of virtual rank 0. So parameters, buffers and the optimizer's state have the same bits on
        any number of ranks, with the same torch, instruction set, number of threads and optimizer.

        `step` is the number of the step, from 0. Raises UsageError without `virtual_ranks`, and if
        a part is left out.
        """
        if self._options.virtual_ranks is None:
            raise UsageError("parts needs a number of virtual ranks: DataParallel(virtual_ranks=8)")
        if not self._attached or self._closed:
            raise UsageError(_UNATTACHED if not self._attached else "the wrapper is closed")
        return self._virtual.parts(step)

    @property
    def hash(self) -> str:
        """The hash of all parameters, buffers and optimizer states, as 32 hex digits.

        Equal hashes mean equal bits. Blocks until all pending optimizer steps are taken.
        """
        if not self._attached:
            raise UsageError(_UNATTACHED)
        if not self._closed:
            self.synchronize()
            if self._evidence is not None:
                self._evidence.ended()
        from slackline.overlap.certificate import state_hash  # Most models need no hash.

        return state_hash(self.module, self._optimizers)

    def _last_hash(self) -> str:
        """Return `hash` at the end of the process, when the group may be closed."""
        for reducer in self._gradients.reducers:
            reducer.finish_all()
        from slackline.overlap.certificate import state_hash  # Most models need no hash.

        return state_hash(self.module, self._optimizers)

    @property
    def exact(self) -> bool:
        """Whether all ranks have computed the same bits from the same samples in the first step.

        It is True without `virtual_ranks`, and before the first step.
        """
        evidence = self._evidence if self._attached else None
        return evidence is None or evidence.exact is not False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this rank, without reductions, while the context lasts.

        The next backward outside the context reduces the accumulated gradients.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @property
    def require_backward_grad_sync(self) -> bool:
        """The flag that `no_sync` sets to False; DDP has a flag of this name, which scripts set."""
        return self._tracker.synchronize

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, value: bool) -> None:
        self._tracker.synchronize = value

    def expect_gradients(self) -> None:
        """Prepare the gradients, within `no_sync`, for additions that no autograd hook reports.

        A pipeline schedule, for example, adds parts of gradients by itself.
        """
        self._gradients.expect()

    def complete_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Start the reductions of these parameters' gradients, which are complete for this step.

        A schedule that computes gradients in parts calls this method after `expect_gradients`.
        Every rank passes each parameter that has a gradient once a step.
        """
        self._gradients.complete(parameters)

    def synchronize(self) -> None:
        """Block until all gradients are reduced and all pending optimizer steps are taken."""
        self._gradients.wait_reduced()

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> Tensor:
        """Clip the norm of all gradients; return the norm that they had.

        The result is bit-identical to that of torch.nn.utils.clip_grad_norm_, whose arguments and
        error this method has. Blocks until all gradients are reduced. The norm of each gradient is
        computed when that gradient is reduced, while others are under way.
        """
        return self._gradients.clip(
            max_norm, float(norm_type), error_if_nonfinite=error_if_nonfinite
        )

    @property
    def group_bytes(self) -> int:
        """The most bytes of gradients in one reduction; the value changes during a trial."""
        return self._gradients.group_bytes

    @property
    def trial_result(self) -> str:
        """The choice of `group_bytes` with the step time of each size that was tried.

        The text is empty until the first trial has ended, and if `group_bytes` was given.
        """
        return self._gradients.trial_result

    @property
    def last_step(self) -> StepSummary | None:
        """The communication cost of the latest finished step; None before any step is finished."""
        return self._report.last_step

    def run_summary(self) -> RunSummary:
        """Return the communication cost, summed over all steps so far."""
        return self._report.run_summary()

    def close(self) -> None:
        """Finish all pending steps and restore the module and the optimizers.

        Blocks until the reductions are done. Afterwards the wrapper only calls the module's
        forward. Call `close` before destroy_process_group if the gradients will still be read.
        """
        if self._closed:
            return
        self._closed = True
        try:
            try:
                if self._evidence is not None:
                    self._evidence.close()
            finally:
                self._gradients.close()
        finally:
            self._report.close()

    def abandon(self) -> None:
        """Restore the module and the optimizers without waiting for other ranks.

        The method serves a group that has lost a rank. All gradients become None, and unfinished
        reductions are discarded. Some parameters may have taken the latest step and others not,
        unless that step was taken for all parameters together; see the guide to elastic training.
        """
        if self._closed:
            return
        self._closed = True
        self._report.last_hash = None
        try:
            if self._evidence is not None:
                self._evidence.abandon()
            self._gradients.abandon()
        finally:
            self._report.close()

    def __enter__(self) -> "DataParallel":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Call `close` after a body without an exception, else `abandon`."""
        if kind is None:
            self.close()
        else:
            self.abandon()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients; a gradient that a pending step needs is cleared after that step."""
        if self._closed:
            self.module.zero_grad(set_to_none)
        else:
            self._gradients.zero_grad(set_to_none)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the wrapped module's state dict, whose names carry no prefix of the wrapper."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state dict into the wrapped module; every rank must load the same values.

        The names may carry the prefix `module.` of torch's DistributedDataParallel. Raises
        UsageError for `assign=True`, which would replace the parameters.
        """
        if assign:
            raise UsageError("assign=True would replace the parameters that are being reduced")
        return self.module.load_state_dict(without_prefix(self.module, state_dict), strict)

    def _fqn_modifiers(self) -> dict[str, str]:
        """Tell torch's distributed checkpoints to leave the wrapper's attribute out of names.

        torch.distributed.checkpoint.state_dict skips the children in this dictionary's values, and
        looks a name in its keys up in the attribute of the corresponding value.
        """
        return {"module": "module"}

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters under the wrapped module's names, as in `state_dict`."""
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield the buffers under the wrapped module's names, as in `state_dict`."""
        return self.module.named_buffers(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return the wrapped module's attribute `name`, which the wrapper itself does not have."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            if name in _SINCE_ATTACH:
                raise UsageError(_UNATTACHED) from None
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
        if self._gradients.trial_result != self._told_trial:
            self._told_trial = self._gradients.trial_result
            self._report.group_bytes(self._gradients.group_bytes, "trial")
        if self._followers is not None:
            begin = self._recorder.clock()
            self._followers.follow_rank_0()
            self._recorder.waited(begin, parameters=0)


def _refuse() -> None:
    raise UsageError("compile the module and then wrap it, not the other way round")


def _add_prefix(module: DataParallel, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    """Add the prefix `module.` to the names that a wrapped submodule loads.

    A wrapper's `state_dict` leaves the prefix out, but torch's loading of an outer module needs it.
    """
    keys = [key for key in state_dict if key.startswith(prefix)]
    mine = without_prefix(module.module, {key[len(prefix) :]: state_dict.pop(key) for key in keys})
    state_dict.update((f"{prefix}module.{name}", value) for name, value in mine.items())
