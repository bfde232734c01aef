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
from torch import Tensor
from torch.optim import Optimizer

from slackline.overlap._recorder import Recorder
from slackline.overlap.exchange import Exchange
from slackline.overlap.reduction._compiled_autograd import refuse_compiled_autograd
from slackline.overlap.reduction._gradient_group import Divisor, GradientGroup
from slackline.overlap.reduction._gradient_step import GradientStep
from slackline.overlap.reduction._grouping import Change, Grouping
from slackline.overlap.reduction._hooks import Hooks
from slackline.overlap.reduction._model_state import ModelState
from slackline.overlap.reduction._parameter_state import ParameterState, Phase
from slackline.overlap.reduction._pending_updates import PendingUpdates
from slackline.overlap.reduction._reductions import Reductions
from slackline.overlap.reduction.tuning import Tuning

__all__ = ["GradientReducer"]

_log = logging.getLogger("slackline.overlap")
_graph_task = torch._C._current_graph_task_id
_NO_TASK = -2
"""A number that `_graph_task` never returns; outside of backward passes it returns -1."""


class GradientReducer:
    """The reductions of one optimizer's gradients: it acts on what the hooks and the user report.

    The training thread and autograd's thread use the object in turn, never at the same time.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        exchange: Exchange,
        grouping: Grouping,
        model: ModelState,
        recorder: Recorder,
        *,
        key: int,
        eager: bool,
    ) -> None:
        """Create a reducer without parameters, which `add` registers.

        `key` identifies the exchange's `agree` operations; no parameter has this key. With `eager`
        False, nothing is posted before `post_missing`.
        """
        self._exchange = exchange
        self._grouping = grouping
        self._model = model
        self._recorder = recorder
        self._key = key
        self._eager = eager
        self._reductions = Reductions(recorder)
        self._updates = PendingUpdates(optimizer, self._reductions, model.watched, recorder)
        self._step = GradientStep(model, in_order=not exchange.matches_by_key)
        self._hooks = Hooks(self)
        self._set_aside: set[ParameterState] = set()
        """The gradients whose reduced values wait for an addition by the running backward."""
        self._watching = False
        """True while reads of gradients that are not reduced are reported."""
        self._told = False
        self._task = _NO_TASK
        """The graph task of a backward whose gradients are all reduced when they arrive."""

    @property
    def states(self) -> list[ParameterState]:
        """The ParameterState of each parameter, in the order of the gradients in memory."""
        return self._grouping.states

    @property
    def tuning(self) -> Tuning:
        """The variant of the steps: the size of groups, and the way of the update."""
        return self._grouping.tuning

    @property
    def open(self) -> bool:
        """True if gradients that all ranks must reduce have arrived since the latest step."""
        self._look()
        return self._step.opened

    @property
    def reduced(self) -> bool:
        """True if all gradients of this step have been posted and their reductions awaited."""
        posted = self._step.gradient_posted
        return all(posted(state) and state.phase is Phase.REDUCED for state in self.states)

    @property
    def needs_agreement(self) -> bool:
        """True if `wait_reduced` would block until the other ranks call it as well."""
        return self._step.needs_agreement

    @property
    def extra(self) -> bool:
        """True if a gradient of this step has grown after its reduction was posted."""
        return self._step.had_extra

    @property
    def updating(self) -> bool:
        """True if the update of some parameter is pending."""
        return bool(self._updates)

    def pending(self, state: ParameterState) -> bool:
        """Return whether the update of this parameter is pending."""
        return state in self._updates

    def divide_by(self, divisor: Divisor) -> None:
        """Divide the results of the reductions that are posted from now on."""
        self._reductions.divisor = divisor

    def add(self, states: Sequence[ParameterState]) -> None:
        """Register hooks on more parameters; every rank passes them in the same order."""
        self._hooks.add(states)
        self._grouping.add(states)
        self._follow()

    def begin_backward(self, task: int) -> None:
        """Prepare for the backward pass of a forward pass that was made through the wrapper.

        Called before autograd computes any gradient. `task` is the number of autograd's graph task.
        """
        if self._updates:
            for state in self._hooks.with_one_hook():
                if state in self._updates:
                    self.finish(state)
        if self._hooks.begin(task):
            torch.autograd.Variable._execution_engine.queue_callback(self._look)
        self._step.reduced = False
        self._note_busy()

    def before_gradient(self, state: ParameterState) -> None:
        """Prepare for autograd's addition to the gradient; a hook calls this."""
        if state.phase is Phase.LOCAL and state not in self._updates.waits_for:
            return
        refuse_compiled_autograd()
        if self._make_room(state):
            self._set_aside.add(state)
            torch.autograd.Variable._execution_engine.queue_callback(self._unstash)

    def gradient_arrived(self, state: ParameterState) -> None:
        """Post the groups that this gradient, which autograd has just added, completes.

        A hook calls this.
        """
        if self._set_aside:
            self._set_aside.discard(state)
        task: int = _graph_task()
        if task != self._task and not self._reduces(state, task):
            return
        if self._hooks.alone:
            self._hooks.check(state, self._step)
        for group in self._step.arrive(state):
            self._post(group)

    def _reduces(self, state: ParameterState, task: int) -> bool:
        """Record a gradient of a backward pass; return whether it is to be reduced now.

        If nothing else is to be recorded of the further gradients of the pass, `task` is kept, and
        this method is not called for them.
        """
        refuse_compiled_autograd()
        step, synchronize = self._step, self._model.synchronize
        if not (step.opened or synchronize):
            return False
        self._open()
        step.count_backward(task)
        if self._grouping.observing:
            self._grouping.note(state)
        elif synchronize and self._eager:
            self._task = task
        return step.gradient_posted(state) or (synchronize and self._eager)

    def expect(self) -> None:
        """Prepare all gradients for additions outside autograd, which no hook reports.

        Counts as a backward pass, which every rank makes, whatever gradients it then computes.
        """
        self.unwatch()
        self._step.expect()
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
        if self._eager or self._step.gradient_posted(state):
            self._hooks.check(state, self._step)
            for group in self._step.arrive(state):
                self._post(group)

    def post_missing(self) -> None:
        """Post all gradient groups that this rank has not yet posted in this step.

        Blocks on the other ranks if `needs_agreement`. Every rank calls this method in every step.
        """
        self._look()
        missing = self._step.missing()
        watching = (missing or self.needs_agreement) and self.unwatch()
        for group in missing:
            for state in group.members:
                self._make_local(state)
            self._post(group)
        if self.needs_agreement:
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
        if states is None:
            self.finish_all()
            for posting in self._reductions.in_flight():
                self.finish(posting.states[0])
        else:
            for state in states:
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
        self._updates.defer(sorted(self.states, key=attrgetter("priority")))
        self._recorder.stepped()
        self.reset_step()
        self._sweep()
        self._finish_kept_elsewhere()
        self._change(self._grouping.decide())

    def reduce_all(self) -> None:
        """Block until all gradients are reduced, before a step of all parameters together."""
        self._observe()
        self.post_missing()
        self.wait_reduced()
        self._step.reduced = True
        self._note_busy()  # the optimizer reads the parameters without a report

    def step_taken(self) -> None:
        """Record that the optimizer has just updated all parameters together."""
        if not self._step.observed:
            self._hooks.observe(self._step, regular=False)
        self._recorder.stepped()
        self.reset_step()
        self._change(self._grouping.decide())

    def reset_step(self) -> None:
        """Begin another training step, after the gradients were used or discarded."""
        self.unwatch()
        self._task = _NO_TASK
        self._hooks.restart()
        self._step.restart()
        self._settle()

    def finish(self, state: ParameterState, companions: Iterable[ParameterState] = ()) -> None:
        """Wait for one gradient's reduction; then take the parameter's pending optimizer step.

        The parameters in `companions` whose gradients are reduced are updated in the same optimizer
        call.
        """
        due = state in self._updates
        posting = self._reductions.of(state)
        if posting is not None:
            if not posting.done():
                self._sweep()
                began, count = self._recorder.clock(), len(posting.group.states)
                posting.wait()
                self._recorder.waited(began, parameters=count, late=due, group=posting.group.key)
            self._reductions.end(posting, show=not due)
            if not due and self._watching:
                self._model.watched.unwatch(each.parameter for each in posting.states)
        if state in self._updates:  # the reduction may have ended before the sweep, which updates
            self._updates.take(state, companions)
            self._settle()

    def watch(self) -> None:
        """Let reads of gradients that are not reduced yet be reported, until `unwatch`.

        Called again when a backward may have added to gradients that were reduced before.
        """
        if self.open:
            self._watching = True
            posted, reduced = self._step.gradient_posted, Phase.REDUCED
            self._model.watched.watch(
                state.parameter
                for state in self.states
                if state.phase is not reduced or not posted(state)
            )

    def unwatch(self) -> bool:
        """Let gradients be read without a report; return whether reads were reported before.

        Parameters with a pending step stay watched.
        """
        watching, self._watching = self._watching, False
        if watching:
            pending = self._updates.waits_for
            self._model.watched.unwatch(
                state.parameter for state in self.states if state not in pending
            )
        return watching

    def finish_all(self) -> None:
        """Block until every pending optimizer step is taken."""
        while self._updates:
            self.finish(self._updates.first())

    def present(self) -> list[Tensor | None]:
        """Return the gradients that the parameters have, in the order of the parameters."""
        states = sorted(self.states, key=attrgetter("index"))
        return [state.parameter.grad for state in states]

    def drop(self) -> None:
        """Forget gradients that were accumulated without a reduction."""
        for state in self.states:
            state.parameter.grad = None

    def clear(self, *, set_to_none: bool) -> None:
        """Clear all gradients; a gradient that a pending step needs is cleared after that step."""
        if self.open:
            self.wait_reduced()
            self.reset_step()
        with torch._C.DisableTorchFunctionSubclass():  # pending parameters report their reads
            self._updates.clear_later(set_to_none=set_to_none)
            for state in self.states:
                if state not in self._updates.waits_for:
                    state.clear_gradient(set_to_none=set_to_none)

    def hook_each(self) -> None:
        """Place hooks on every parameter again: the next backward may differ from earlier ones."""
        self._look()
        self._task = _NO_TASK
        self._hooks.hook_each()

    @property
    def kept(self) -> dict[str, Any] | None:
        """The gradient groups that a checkpoint must save; None if sums do not depend on them."""
        return self._grouping.kept

    def keep(self, kept: Mapping[str, Any]) -> None:
        """Use the gradient groups that a checkpoint has saved, from the next gradients on."""
        self._change(self._grouping.keep(kept, now=not self.open))

    def close(self) -> None:
        """Take every pending optimizer step, then remove the hooks, even if a step raises."""
        try:
            self.wait_reduced()
            self._reductions.settle()
            self._grouping.close()
        finally:
            for state in self.states:
                self._model.watched.forget(state)
            self._hooks.remove()
            for state in self.states:
                state.detach()
            self.states.clear()
            self._step.restart()
            self._note_busy()

    def abandon(self) -> bool:
        """Remove the hooks, discard gradients and pending steps; do not wait.

        Returns whether all reductions had ended, so that their memory may be freed.
        """
        for state in self.states:
            self._model.watched.forget(state)
        self._hooks.remove()
        for state in self.states:
            state.parameter.grad = None
        ended = self._grouping.done() and self._reductions.done()
        self.states.clear()
        self._updates.drop()
        self._step.restart()
        self._note_busy()
        return ended

    def _look(self) -> None:
        """Find the gradients of a backward pass that no hook has reported."""
        if self._hooks.look(self._step):
            self._open()
            self._step.count_backward(self._hooks.task)

    def _make_room(self, state: ParameterState) -> bool:
        """Prepare a gradient for additions; return whether its reduced value was set aside."""
        if state in self._updates:
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
        while self._set_aside:
            self._set_aside.pop().unstash()

    def _make_local(self, state: ParameterState) -> None:
        self.finish(state)
        if state.phase is Phase.REDUCED:
            state.stash()

    def _open(self) -> None:
        step = self._step
        if not step.opened or step.reduced:
            step.opened, step.reduced = True, False
            self._note_busy()

    def _observe(self) -> None:
        """Record, before the missing groups are posted, how this step's gradients have arrived."""
        whole = not self._hooks.watching
        if not whole or self.needs_agreement or not self._step.all_posted:
            self.unwatch()
        self._look()
        regular = whole and self._step.regular and self._eager
        self._hooks.observe(self._step, regular=regular)
        self._step.observed = True

    def _post(self, group: GradientGroup) -> None:
        """Post the reduction of a group; finish gradients that an earlier step has posted first."""
        self._open()
        for state in group.states:
            if state.phase is Phase.POSTED:
                self.finish(state)
        self._reductions.post(group, self._step.members(group), self._grouping.parity)
        self._step.post(group)

    def _post_extras(self) -> None:
        """Agree with all ranks on the gradients to reduce once more, and post each alone."""
        extras = self._step.take_extras(self.states)
        bits = torch.tensor(extras, dtype=torch.uint8, device="cpu")
        began = self._recorder.clock()
        self._exchange.agree(self._key, bits)
        self._recorder.waited(began, parameters=0)
        for state, again in zip(self.states, bits.tolist(), strict=True):
            if again:
                self._make_local(state)
                alone = self._grouping.alone(state)
                self._reductions.post(alone, alone.members, self._grouping.parity)

    def _change(self, change: Change) -> None:
        """Form other gradient groups, if `change` asks for them."""
        for state in change.order or ():
            self.finish(state)
        if change:
            self._grouping.apply(change)
            self._follow()

    def _follow(self) -> None:
        self._step.follow(self._grouping.groups)
        self._hooks.follow(self._grouping.groups)

    def _sweep(self) -> None:
        """Take all pending optimizer steps whose gradients are reduced; do not block."""
        if self._updates:
            self._updates.sweep()
            self._settle()

    def _finish_kept_elsewhere(self) -> None:
        """Take the steps of parameters that the program can read without notice."""
        kept = self._updates.kept_elsewhere()
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
        if not self._updates:
            self._recorder.settled()
        self._note_busy()

    def _note_busy(self) -> None:
        """Let reads be reported while a gradient may be unreduced or an update pending."""
        unreduced = self._step.opened and not self._step.reduced
        busy = unreduced or self._hooks.watching or bool(self._updates)
        self._model.set_busy(self, busy)
