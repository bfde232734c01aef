"""One optimizer's gradients, from the moment autograd has them to each parameter's step.

Between two calls of the optimizer's `step` each rank posts each parameter's gradient once, also
where the rank has none:

    hooks          post a group of gradients when autograd has brought its last one
    post_missing   post the other groups, with zeros for gradients that never came
    defer_step     the user's `step`: remember the optimizer's settings and return at once
    finish         wait for the reduction of one gradient and take that parameter's step

A second backward before the step may add to gradients that have been posted already. Ranks may
differ in which those are, so `post_missing` has them agree and posts those a second time.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch.optim import Optimizer

from slackline.overlap._arrivals import Arrivals
from slackline.overlap._deferred import DeferredSteps
from slackline.overlap._exchange import Exchange
from slackline.overlap._gradient_group import GradientGroup
from slackline.overlap._grouping import Grouping
from slackline.overlap._parameter_state import Clear, ParameterState, Phase
from slackline.overlap._read_tracker import ReadTracker
from slackline.overlap._recorder import Recorder

__all__ = ["GradientReducer"]


class GradientReducer:
    """Reduces one optimizer's gradients. The training thread or autograd's uses it, never both."""

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
        """`key`: of agreements; no parameter has this key, nor the next one, which groupings use.

        `eager` False: post nothing before `post_missing`. `group_bytes` None: found by trial.
        """
        self._exchange = exchange
        self._tracker = tracker
        self._recorder = recorder
        self._key = key
        self._eager = eager
        self._deferred = DeferredSteps(optimizer)
        self._grouping = Grouping(
            exchange,
            recorder.clock,
            self.finish,
            key=key + 1,
            average=average,
            group_bytes=group_bytes,
        )
        self._arrivals = Arrivals(self.finish, self._unnoticed)
        self._expecting: set[ParameterState] = set()
        self._opened = False
        self._task = -1
        self._backwards = self._backwards_before = 0
        self._agreed = self._extra = False

    @property
    def states(self) -> list[ParameterState]:
        """One for each parameter."""
        return self._grouping.states

    @property
    def open(self) -> bool:
        """Whether gradients have come since the last step that all ranks must reduce."""
        self._arrivals.look()
        return self._opened

    @property
    def busy(self) -> bool:
        """Whether `open` may be, or some parameter has not taken its step yet."""
        return self._opened or self._arrivals.watching or bool(self._deferred)

    @property
    def reduced(self) -> bool:
        """Whether the gradients of this step have all been waited for."""
        return all(state.posted and state.phase is Phase.REDUCED for state in self.states)

    @property
    def needs_agreement(self) -> bool:
        """Whether `wait_reduced` would block until the other ranks call it as well.

        All ranks come to the same answer: they call backward equally often, whatever parameters
        each of them reaches. Only where none came through the wrapper's forward do the hooks of
        this optimizer's parameters count.
        """
        through_forward = self._tracker.backwards - self._backwards_before
        several = (through_forward or self._backwards) > 1 or self._extra
        return several and not self._agreed

    @property
    def group_bytes(self) -> int:
        """The most bytes of gradients that are reduced together."""
        return self._grouping.tuning.group_bytes

    @property
    def trial_result(self) -> str:
        """What the trial of groups has found; empty where it has not ended or there is none."""
        return self._grouping.tuning.result

    def add(self, states: Iterable[ParameterState]) -> None:
        """Take parameters over, in the same order on all ranks, and register hooks on them."""
        new = list(states)
        for state in new:
            state.before_gradient, state.on_gradient = self._before_gradient, self._on_gradient
            state.on_last_gradient = self._whole
        self._arrivals.add(new)
        self._grouping.add(new)
        self._arrivals.follow(self._grouping.groups)

    def begin_backward(self, task: int) -> None:
        """Prepare for a backward through the forward, before the first gradient of a parameter."""
        self._arrivals.begin(task)
        self._tracker.refresh()

    def expect(self) -> None:
        """Prepare all gradients for additions that autograd does not announce."""
        for state in self.states:
            self._make_room(state)

    def complete(self, state: ParameterState) -> None:
        """Post a gradient that was completed outside autograd, for example by a schedule."""
        if state.parameter.grad is None:
            return
        self._open()
        self._grouping.note(state)
        if state.posted:
            state.extra = self._extra = True
            self._backwards, self._agreed = max(2, self._backwards), False
        elif self._eager:
            self._arrive(state)

    def post_missing(self) -> None:
        """Post the groups that this rank has not posted. Each rank calls it once a step."""
        self._arrivals.look()
        for group in self._grouping.groups:
            if not group.posted and (members := group.members):
                for state in members:
                    self._make_local(state)
                self._post(group)
        if self.needs_agreement:
            self._agreed = True
            self._post_extras()

    def wait_reduced(self, states: Iterable[ParameterState] | None = None) -> None:
        """Block until gradients are reduced, all or those of `states`; take the steps that are due.

        Posts the missing groups first.
        """
        if self.open:
            self.post_missing()
        for state in self.states if states is None else states:
            self.finish(state)

    def defer_step(self) -> None:
        """Have each parameter take the user's step when its gradient is reduced.

        Blocks in the one step after which gradients move to a better order.
        """
        self.finish_all()
        through_forward = self._tracker.backwards - self._backwards_before
        whole = not self._arrivals.watching
        self._arrivals.look()
        regular = whole and through_forward == 1 >= self._backwards and not self._extra
        self._arrivals.observe(regular=regular and self._eager)
        self.post_missing()
        self._deferred.defer(sorted(self.states, key=attrgetter("priority")))
        self._recorder.stepped()
        self.reset_step()
        self._sweep()
        self._regroup()

    def step_taken(self) -> None:
        """Note that the optimizer has stepped all parameters together."""
        self._arrivals.observe(regular=False)
        self._recorder.stepped()
        self.reset_step()
        self._regroup()

    def reset_step(self) -> None:
        """Begin another step: the gradients have been used or thrown away."""
        self._arrivals.restart()
        self._grouping.restart()
        self._backwards, self._backwards_before = 0, self._tracker.backwards
        self._agreed = self._extra = self._opened = False
        self._settle()

    def finish(self, state: ParameterState, companions: Iterable[ParameterState] = ()) -> None:
        """Wait for one gradient; if its step is due, take it, and those of ready companions."""
        posting = state.posting
        if posting is not None:
            if not posting.done():
                self._sweep()
                begin = self._recorder.clock()
                posting.wait()
                elapsed_ns = self._recorder.clock() - begin
                self._recorder.waited(elapsed_ns, parameters=len(posting.states), late=state.due)
            posting.wait()
        if state.due:
            self._deferred.take(state, companions)
            self._settle()

    def finish_all(self) -> None:
        """Take every step that is due."""
        while self._deferred:
            self.finish(self._deferred.first())

    def clear(self, how: Clear) -> None:
        """Clear all gradients: at once, or after the step that still uses the gradient."""
        if self.open:
            self.wait_reduced()
            self.reset_step()
        for state in self.states:
            if not state.due:
                state.clear_gradient(how)
            elif how is Clear.NONE:
                state.clear_later = how
                state.parameter.grad = None
            elif state.clear_later is Clear.NO:
                state.clear_later = how

    def close(self) -> None:
        """Take every step that is due, then release the parameters, also where a step fails."""
        try:
            self.wait_reduced()
            self._grouping.close()
        finally:
            self._arrivals.remove()
            for state in self.states:
                state.detach()
            self.states.clear()

    def abandon(self) -> bool:
        """Release the parameters without gradients; return whether all reductions had ended."""
        self._arrivals.remove()
        for state in self.states:
            state.parameter.grad = None
        ended = self._grouping.done()
        self.states.clear()
        self._deferred.drop()
        self._opened = False
        return ended

    def _before_gradient(self, state: ParameterState) -> None:
        if self._make_room(state):
            state.armed = False
            self._expecting.add(state)
            torch.autograd.Variable._execution_engine.queue_callback(self._unstash)

    def _make_room(self, state: ParameterState) -> bool:
        """Prepare a gradient for additions; return whether its reduced value was stashed."""
        if state.due:
            self.finish(state)
        if state.phase is Phase.POSTED:
            # Waiting could last for ever: another rank may post this gradient only at its step.
            state.accumulate_locally()
        elif state.phase is Phase.REDUCED:
            state.stash()
            return True
        return False

    def _unstash(self) -> None:
        """Undo `stash` after a backward where no gradient came: autograd.grad had asked for one."""
        while self._expecting:
            self._expecting.pop().unstash()

    def _on_gradient(self, state: ParameterState) -> None:
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
        """Open the step for gradients that have come without a hook."""
        self._open()
        self._count_backward(task)

    def hook_each(self) -> None:
        """Have each gradient reported: what comes next may differ from the steps before."""
        self._arrivals.look()
        self._arrivals.disarm()
        self._arrivals.hook_each()

    @property
    def kept(self) -> dict[str, Any] | None:
        """What a checkpoint has to carry about groups; None where it does not matter."""
        return self._grouping.kept

    def keep(self, kept: Mapping[str, Any]) -> None:
        """Use the groups that a checkpoint brings, from the next gradients on."""
        if self._grouping.keep(kept, now=not self.open):
            self._arrivals.follow(self._grouping.groups)

    def _regroup(self) -> None:
        """Form other groups for the next step, if there is a reason."""
        if self._grouping.step():
            self._arrivals.follow(self._grouping.groups)

    def _arrive(self, state: ParameterState) -> None:
        """Count a gradient of this rank; post its group if it was the last one of it."""
        if self._arrivals.arrive(state):
            self._whole(state.gradient_group)

    def _whole(self, group: GradientGroup) -> None:
        """Post a group whose gradients have all come."""
        for each in self._grouping.whole(group):
            self._post(each)

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
            if state.posting is not None:  # in a group of an earlier cut
                self.finish(state)
        self._recorder.posted(group.post(self._grouping.parity), len(group.states))

    def _post_extras(self) -> None:
        bits = torch.tensor([state.extra for state in self.states], dtype=torch.uint8)
        self._exchange.agree(self._key, bits)
        for state, again in zip(self.states, bits.tolist(), strict=True):
            if again:
                if state.phase is not Phase.LOCAL:
                    state.wait_and_stash()
                state.extra = False
                self._post(self._grouping.alone(state))

    def _sweep(self) -> None:
        """Take all steps that are due and need no waiting."""
        if self._deferred:
            self._deferred.sweep()
            self._settle()

    def _settle(self) -> None:
        if not self._deferred:
            self._recorder.settled()
        self._tracker.refresh()
