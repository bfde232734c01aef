"""The gradients of one optimizer, from their computation by autograd to each parameter's update.

Between two calls of the optimizer's `step`, each rank posts the gradient of each parameter once.
A rank that has no gradient of a parameter posts zeros:

    hooks          post a group of gradients when autograd has computed the last of them
    post_missing   post the other groups, with zeros for gradients that are None
    defer_step     the user's `step`: save the optimizer's settings and return without waiting
    finish         wait for the reduction of one gradient and update that parameter

A second backward before the step may add to gradients that are already posted. The set of such
gradients may differ between ranks, so `post_missing` forms its union over the ranks and posts the
gradients in it a second time.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.optim import Optimizer

from slackline.overlap._recorder import Recorder
from slackline.overlap.exchange import Exchange
from slackline.overlap.reduction._arrivals import Arrivals
from slackline.overlap.reduction._compiled_autograd import refuse_compiled_autograd
from slackline.overlap.reduction._deferred import DeferredSteps
from slackline.overlap.reduction._gradient_group import GradientGroup
from slackline.overlap.reduction._grouping import Grouping
from slackline.overlap.reduction._parameter_state import Clear, ParameterState, Phase
from slackline.overlap.reduction._read_tracker import ReadTracker

__all__ = ["GradientReducer"]

_log = logging.getLogger("slackline.overlap")


class GradientReducer:
    """The reductions of one optimizer's gradients.

    The training thread and autograd's thread use the object in turn, never at the same time.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        exchange: Exchange,
        tracker: ReadTracker,
        recorder: Recorder,
        *,
        key: int,
        eager: bool,
        average: bool,
        group_bytes: int | None,
    ) -> None:
        """Create a reducer without parameters, which `add` registers.

        `key` identifies the exchange's `agree` operations, and `key + 1` the averages that tune the
        groups; no parameter has either key. With `eager` False, nothing is posted before
        `post_missing`. `group_bytes` None finds the size of groups by trial.
        """
        self._exchange = exchange
        self._tracker = tracker
        self._recorder = recorder
        self._key = key
        self._eager = eager
        self._deferred = DeferredSteps(optimizer, recorder)
        self._grouping = Grouping(
            exchange,
            recorder,
            self.finish,
            key=key + 1,
            average=average,
            group_bytes=group_bytes,
        )
        self._arrivals = Arrivals(self.finish, self._unnoticed)
        self._expecting: set[ParameterState] = set()
        self._opened = False
        self._watching = False
        """True while reads of gradients that are not reduced are reported to the tracker."""
        self._told = False
        self._task = -1
        self._backwards = self._backwards_before = 0
        self._by_hand = 0
        self._agreed = self._extra = self._observed = False

    @property
    def states(self) -> list[ParameterState]:
        """The ParameterState of each parameter, in the order of the gradients in memory."""
        return self._grouping.states

    @property
    def open(self) -> bool:
        """True if gradients that all ranks must reduce have arrived since the latest step."""
        self._arrivals.look()
        return self._opened

    @property
    def busy(self) -> bool:
        """True if a gradient may wait for its reduction, or a parameter for its optimizer step."""
        return self._opened or self._arrivals.watching or bool(self._deferred)

    @property
    def reduced(self) -> bool:
        """True if all gradients of this step have been posted and their reductions awaited."""
        return all(state.posted and state.phase is Phase.REDUCED for state in self.states)

    @property
    def needs_agreement(self) -> bool:
        """True if `wait_reduced` would block until the other ranks call it as well.

        All ranks get the same value, since all ranks call backward equally often, whatever
        parameters a backward pass reaches. The passes through the wrapper's forward are counted; if
        there was none, the calls of `expect`, or the passes that reached this optimizer's
        parameters, are counted instead.
        """
        through_forward = self._tracker.backwards - self._backwards_before
        several = (through_forward or self._by_hand or self._backwards) > 1 or self._extra
        return several and not self._agreed

    @property
    def group_bytes(self) -> int:
        """The most bytes of gradients in one reduction."""
        return self._grouping.tuning.group_bytes

    @property
    def steps_together(self) -> bool:
        """True if a step that updates all parameters together is tried, or has proved faster."""
        return not self._grouping.tuning.variant.deferred

    @property
    def trial_result(self) -> str:
        """The result of the latest trial; empty if no trial has ended."""
        return self._grouping.tuning.result

    def add(self, states: Iterable[ParameterState]) -> None:
        """Register hooks on more parameters; every rank passes them in the same order."""
        new = list(states)
        for state in new:
            state.before_gradient, state.on_gradient = self._before_gradient, self._on_gradient
            state.on_last_gradient = self._whole
            state.watched_class = self._tracker.watched.of(type(state.parameter))
        self._arrivals.add(new)
        self._grouping.add(new)
        self._arrivals.follow(self._grouping.groups)

    def begin_backward(self, task: int) -> None:
        """Prepare for the backward pass of a forward pass that was made through the wrapper.

        Called before autograd computes any gradient. `task` is the number of autograd's graph task.
        """
        self._arrivals.begin(task)
        self._tracker.refresh()

    def expect(self) -> None:
        """Prepare all gradients for additions outside autograd, which no hook reports.

        Counts as a backward pass, which every rank makes, whatever gradients it then computes.
        """
        self.unwatch()
        self._by_hand += 1
        self._agreed = False
        for state in self.states:
            self._make_room(state)

    def complete(self, state: ParameterState) -> None:
        """Post a gradient that was completed outside autograd, for example by a schedule.

        A rank that has computed no gradient of the parameter makes the call too, and posts zeros as
        soon as gradients are read or used.
        """
        self.unwatch()
        self._open()
        if state.parameter.grad is None:
            return
        self._grouping.note(state)
        if state.posted:
            state.extra = self._extra = True
            self._agreed = False
        elif self._eager:
            self._arrive(state)

    def post_missing(self) -> None:
        """Post all gradient groups that this rank has not yet posted in this step.

        Blocks on the other ranks if `needs_agreement`. Every rank calls this method in every step.
        """
        self._arrivals.look()
        missing = [(g, g.members) for g in self._grouping.groups if not g.posted]
        watching = (any(members for _, members in missing) or self.needs_agreement) and (
            self.unwatch()
        )
        for group, members in missing:
            if members:
                for state in members:
                    self._make_local(state)
                self._post(group)
        if self.needs_agreement:
            self._agreed = True
            self._post_extras()
        if watching:
            self.watch()

    def wait_reduced(self, states: Iterable[ParameterState] | None = None) -> None:
        """Block until the gradients of `states` (None: of all) are reduced; take pending steps.

        Posts gradient groups that are not posted yet.
        """
        if states is None:
            self.unwatch()
        if self.open:
            self.post_missing()
        for state in self.states if states is None else states:
            self.finish(state)

    def as_reduced(self) -> Iterator[Sequence[ParameterState]]:
        """Block until one gradient group after another is reduced; yield each group's parameters.

        Posts gradient groups that are not posted yet, and takes pending steps.
        """
        self.unwatch()
        if self.open:
            self.post_missing()
        for group in self._grouping.groups:
            for state in group.states:
                self.finish(state)
            yield group.states

    def defer_step(self) -> None:
        """Mark the optimizer step as pending: each parameter takes it after its reduction.

        Steps that are pending from an earlier call are finished first. After one step, gradients
        move to a better order in memory; in that step, blocks until all gradients are reduced.
        """
        self.finish_all()
        self._observe()
        self.post_missing()
        self._deferred.defer(sorted(self.states, key=attrgetter("priority")))
        self._recorder.stepped()
        self.reset_step()
        self._sweep()
        self._finish_kept_elsewhere()
        self._regroup()

    def reduce_all(self) -> None:
        """Block until all gradients are reduced, before a step of all parameters together."""
        self._observe()
        self.post_missing()
        self.wait_reduced()

    def step_taken(self) -> None:
        """Record that the optimizer has just updated all parameters together."""
        if not self._observed:
            self._arrivals.observe(regular=False)
        self._recorder.stepped()
        self.reset_step()
        self._regroup()

    def reset_step(self) -> None:
        """Begin another training step, after the gradients were used or discarded."""
        self.unwatch()
        self._arrivals.restart()
        self._grouping.restart()
        self._backwards, self._backwards_before = 0, self._tracker.backwards
        self._by_hand = 0
        self._agreed = self._extra = self._opened = self._observed = False
        self._settle()

    def finish(self, state: ParameterState, companions: Iterable[ParameterState] = ()) -> None:
        """Wait for one gradient's reduction; then take the parameter's pending optimizer step.

        The parameters in `companions` whose gradients are reduced are updated in the same optimizer
        call.
        """
        posting = state.posting
        if posting is not None:
            if not posting.done():
                self._sweep()
                began, count = self._recorder.clock(), len(posting.states)
                posting.wait()
                self._recorder.waited(began, parameters=count, late=state.due, group=posting.key)
            posting.wait()
        if state.due:
            self._deferred.take(state, companions)
            self._settle()

    def watch(self) -> None:
        """Let reads of gradients that are not reduced yet be reported, until `unwatch`."""
        if self.open and not self._watching:
            self._watching = True
            for state in self.states:
                if not state.posted or state.phase is not Phase.REDUCED:
                    state.watch()

    def unwatch(self) -> bool:
        """Let gradients be read without a report; return whether reads were reported before.

        Parameters with a pending step stay watched.
        """
        watching, self._watching = self._watching, False
        if watching:
            for state in self.states:
                if not state.due:
                    state.unwatch()
        return watching

    def finish_all(self) -> None:
        """Block until every pending optimizer step is taken."""
        while self._deferred:
            self.finish(self._deferred.first())

    def clear(self, how: Clear) -> None:
        """Clear all gradients; a gradient that a pending step needs is cleared after that step."""
        if self.open:
            self.wait_reduced()
            self.reset_step()
        with torch._C.DisableTorchFunctionSubclass():  # pending parameters report their reads
            for state in self.states:
                if not state.due:
                    state.clear_gradient(how)
                elif how is Clear.NONE:
                    state.clear_later = how
                    state.parameter.grad = None
                elif state.clear_later is Clear.NO:
                    state.clear_later = how

    def close(self) -> None:
        """Take every pending optimizer step, then remove the hooks, even if a step raises."""
        try:
            self.wait_reduced()
            self._grouping.close()
        finally:
            for state in self.states:
                state.unwatch()
            self._arrivals.remove()
            for state in self.states:
                state.detach()
            self.states.clear()

    def abandon(self) -> bool:
        """Remove the hooks, discard gradients and pending steps; do not wait.

        Returns whether all reductions had ended, so that their memory may be freed.
        """
        for state in self.states:
            state.unwatch()
        self._arrivals.remove()
        for state in self.states:
            state.parameter.grad = None
        ended = self._grouping.done()
        self.states.clear()
        self._deferred.drop()
        self._opened = False
        return ended

    def _before_gradient(self, state: ParameterState) -> None:
        refuse_compiled_autograd()
        if self._make_room(state):
            state.armed = False
            self._expecting.add(state)
            torch.autograd.Variable._execution_engine.queue_callback(self._unstash)

    def _make_room(self, state: ParameterState) -> bool:
        """Prepare a gradient for additions; return whether its reduced value was set aside."""
        if state.due:
            self.finish(state)
        if state.phase is Phase.POSTED:
            # Waiting could deadlock: another rank may post this gradient only in its `step`.
            state.accumulate_locally()
        elif state.phase is Phase.REDUCED:
            state.stash()
            return True
        return False

    def _unstash(self) -> None:
        """Restore the reduced gradients that a backward set aside without adding to them.

        autograd.grad, for example, runs a parameter's hook but does not accumulate its gradient.
        """
        while self._expecting:
            self._expecting.pop().unstash()

    def _on_gradient(self, state: ParameterState) -> None:
        refuse_compiled_autograd()
        self._expecting.discard(state)
        if self._tracker.synchronize:
            self._open()
        if not self._opened:
            return
        self._count_backward(torch._C._current_graph_task_id())
        self._grouping.note(state)
        if state.posted:
            state.extra = self._extra = True
        elif self._tracker.synchronize and self._eager:
            if not self._grouping.observing:
                self._arrivals.arm()
            self._arrive(state)

    def _count_backward(self, task: int) -> None:
        if task != self._task:
            self._task = task
            self._backwards += 1
            self._agreed = False

    def _unnoticed(self, task: int) -> None:
        """Record a backward pass whose gradients arrived without a call of a hook."""
        self._open()
        self._count_backward(task)

    def hook_each(self) -> None:
        """Place hooks on every parameter again: the next backward may differ from earlier ones."""
        self._arrivals.look()
        self._arrivals.disarm()
        self._arrivals.hook_each()

    @property
    def kept(self) -> dict[str, Any] | None:
        """The gradient groups that a checkpoint must save; None if sums do not depend on them."""
        return self._grouping.kept

    def keep(self, kept: Mapping[str, Any]) -> None:
        """Use the gradient groups that a checkpoint has saved, from the next gradients on."""
        if self._grouping.keep(kept, now=not self.open):
            self._arrivals.follow(self._grouping.groups)

    def _regroup(self) -> None:
        """Form other gradient groups for the next step, if the order, size or use has changed."""
        if self._grouping.step():
            self._arrivals.follow(self._grouping.groups)

    def _arrive(self, state: ParameterState) -> None:
        """Count a gradient of this rank; post its gradient group if all gradients have arrived."""
        if self._arrivals.arrive(state):
            self._whole(state.gradient_group)

    def _whole(self, group: GradientGroup) -> None:
        """Post a complete gradient group, and groups that had to be posted after it."""
        group.complete = True
        for each in self._grouping.whole(group):
            self._post(each)

    def _observe(self) -> None:
        """Record, before the missing groups are posted, how this step's gradients have arrived."""
        through_forward = self._tracker.backwards - self._backwards_before
        whole = not self._arrivals.watching
        if not whole or self.needs_agreement or not self._grouping.posted:
            self.unwatch()
        self._arrivals.look()
        regular = whole and through_forward == 1 >= self._backwards and not self._extra
        self._arrivals.observe(regular=regular and self._eager)
        self._observed = True

    def _make_local(self, state: ParameterState) -> None:
        self.finish(state)
        if state.phase is Phase.REDUCED:
            state.stash()

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._tracker.refresh()

    def _post(self, group: GradientGroup) -> None:
        self._open()
        for state in group.states:
            if state.posting is not None:  # a group of an earlier step owns the buffer
                self.finish(state)
        nbytes, count = group.post(self._grouping.parity), len(group.states)
        self._recorder.posted(nbytes, count, group=group.key, pending=group.pending)

    def _post_extras(self) -> None:
        bits = torch.tensor([state.extra for state in self.states], dtype=torch.uint8, device="cpu")
        began = self._recorder.clock()
        self._exchange.agree(self._key, bits)
        self._recorder.waited(began, parameters=0)
        for state, again in zip(self.states, bits.tolist(), strict=True):
            if again:
                self._make_local(state)
                state.extra = False
                self._post(self._grouping.alone(state))

    def _sweep(self) -> None:
        """Take all pending optimizer steps whose gradients are reduced; do not block."""
        if self._deferred:
            self._deferred.sweep()
            self._settle()

    def _finish_kept_elsewhere(self) -> None:
        """Take the steps of parameters that the program can read without notice."""
        kept = self._deferred.kept_elsewhere()
        for state in kept:
            self.finish(state)
        if kept and not self._told:
            self._told = True
            _log.info(
                "another tensor shares the memory of parameter %r (and of %d more), so their "
                "updates are awaited in step()",
                kept[0].name,
                len(kept) - 1,
            )

    def _settle(self) -> None:
        if not self._deferred:
            self._recorder.settled()
        self._tracker.refresh()
