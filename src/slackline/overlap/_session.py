"""One optimizer's gradients, from the moment autograd has them to each parameter's step.

A round is what happens between two steps. Within it each rank posts each parameter's gradient
once, and all ranks do so even where a rank has none:

    hooks     post what autograd emits, at once
    flush     post what is still missing, as zeros; from here on every rank has posted everything
    mark      the user's `step`: remember the settings, close the round, wait for nothing
    finish    wait for one gradient and take that parameter's step

A second backward within a round may add to gradients that have been posted already. Ranks may
differ in which those are, so the flush agrees on them and then posts them a second time.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from slackline.overlap._deferred import DeferredSteps
from slackline.overlap._exchange import Exchange
from slackline.overlap._gradient_group import GradientGroup, cut
from slackline.overlap._hooks import before_gradient, on_gradient
from slackline.overlap._order import InOrder
from slackline.overlap._recorder import Recorder
from slackline.overlap._slot import Clear, Phase, Slot, Use
from slackline.overlap._tuning import Tuning
from slackline.overlap._watch import Watch

__all__ = ["Session"]


class Session:
    """The rounds of one optimizer, used by the training thread or autograd's, never by both."""

    def __init__(
        self,
        optimizer: Optimizer,
        exchange: Exchange,
        watch: Watch,
        recorder: Recorder,
        *,
        key: int,
        eager: bool,
        average: bool,
        group_bytes: int | None,
    ) -> None:
        """`key`: for agreements, one that no slot has, nor has the next one. `eager` False: post
        nothing before flush. `group_bytes` None: found by trial.
        """
        self.slots: list[Slot] = []
        self.groups: list[GradientGroup] = []
        self.open = False
        """Whether this round has gradients that are the ranks' common business."""
        self._exchange = exchange
        self._watch = watch
        self._recorder = recorder
        self._key = key
        self._eager = eager
        self._average = average
        self._tuning = Tuning(exchange, recorder.clock, key=key + 1, group_bytes=group_bytes)
        self._deferred = DeferredSteps(optimizer)
        self._order = InOrder(())
        self._handles: list[RemovableHandle] = []
        self._expecting: set[Slot] = set()
        self._armed = False
        """Whether hooks count gradients without a call of this object."""
        self._parity = 0
        self._task = -1
        self._backwards = self._backwards_before = 0
        self._agreed = self._extra = False

    @property
    def pending(self) -> bool:
        """Whether some parameter has not taken its step yet."""
        return bool(self._deferred)

    @property
    def reduced(self) -> bool:
        """Whether every gradient of the round has been waited for."""
        return all(slot.posted and slot.phase is Phase.REDUCED for slot in self.slots)

    @property
    def needs_agreement(self) -> bool:
        """Whether `gather` would have to wait for the other ranks to gather as well.

        All ranks come to the same answer: they call backward equally often, whatever parameters
        each of them reaches. Only where none came through the wrapper's forward do the hooks of
        this optimizer's parameters count.
        """
        through_forward = self._watch.backwards - self._backwards_before
        several = (through_forward or self._backwards) > 1 or self._extra
        return several and not self._agreed

    @property
    def group_bytes(self) -> int:
        """The most bytes of gradients that are reduced together."""
        return self._tuning.group_bytes

    @property
    def trial_result(self) -> str:
        """What the trial of groups has found; empty where it has not ended or there is none."""
        return self._tuning.result

    def add(self, slots: Iterable[Slot]) -> None:
        """Takes slots over, in the same order on all ranks, and hooks their parameters."""
        new = list(slots)
        for slot in new:
            parameter: Any = slot.parameter
            slot.before_gradient, slot.on_gradient = self._before_gradient, self._on_gradient
            slot.on_last_gradient = self._whole
            self._handles += (
                parameter.register_hook(before_gradient(slot)),
                parameter.register_post_accumulate_grad_hook(on_gradient(slot)),
            )
        self.slots += new
        self._cut(new)

    def expect(self) -> None:
        """Other hands than autograd's are about to add to the gradients."""
        for slot in self.slots:
            if slot.due:
                self.finish(slot)
            if slot.phase is Phase.POSTED:
                slot.spill()
            elif slot.phase is Phase.REDUCED:
                slot.reopen()

    def complete(self, slot: Slot) -> None:
        """Other hands than autograd's have brought a gradient of this round to its end."""
        if slot.parameter.grad is None:
            return
        self._open()
        if slot.posted:
            slot.extra = self._extra = True
            self._backwards, self._agreed = max(2, self._backwards), False
        elif self._eager:
            self._arrive(slot)

    def flush(self) -> None:
        """Posts what this rank has not posted in this round; all ranks must come here once."""
        for group in self.groups:
            if not group.posted and (members := group.members):
                for slot in members:
                    self._make_local(slot)
                self._post(group)
        if self.needs_agreement:
            self._agreed = True
            self._post_extras()

    def gather(self, slots: Iterable[Slot] | None = None) -> None:
        """Waits for reduced gradients, and flushes an open round for it; steps what is due."""
        if self.open:
            self.flush()
        for slot in self.slots if slots is None else slots:
            self.finish(slot)

    def mark(self) -> None:
        """The user's step: each parameter steps when its gradient is there. Waits for nothing."""
        self.finish_all()
        self.flush()
        self._deferred.defer(sorted(self.slots, key=attrgetter("priority")))
        self._recorder.stepped()
        self.close_round()
        self._sweep()
        self._tune()

    def end_step(self) -> None:
        """A step of all parameters together has been taken."""
        self._recorder.stepped()
        self.close_round()
        self._tune()

    def close_round(self) -> None:
        """The round's gradients have been used or thrown away."""
        self._armed = False
        for group in self.groups:
            group.restart()
        self._order.restart()
        self._backwards, self._backwards_before = 0, self._watch.backwards
        self._agreed = self._extra = self.open = False
        self._settle()

    def finish(self, slot: Slot, companions: Iterable[Slot] = ()) -> None:
        """Waits for one gradient; if its step is due, takes it, and those of ready companions."""
        posting = slot.posting
        if posting is not None:
            if not posting.done():
                self._sweep()
                begin = self._recorder.clock()
                posting.wait()
                elapsed_ns = self._recorder.clock() - begin
                self._recorder.waited(elapsed_ns, parameters=len(posting.slots), late=slot.due)
            posting.wait()
        if slot.due:
            self._deferred.take(slot, companions)
            self._settle()

    def finish_all(self) -> None:
        """Takes every step that is due."""
        while self._deferred:
            self.finish(self._deferred.first())

    def clear(self, how: Clear) -> None:
        """The user's `zero_grad`: at once, or after its step for a gradient that is still due."""
        if self.open:
            self.gather()
            self.close_round()
        for slot in self.slots:
            if not slot.due:
                slot.forget(how)
            elif slot.clear is Clear.NO:
                slot.clear = how
                if how is Clear.NONE:
                    slot.parameter.grad = None

    def close(self) -> None:
        """Takes every step that is due and lets go of the parameters, also when that fails."""
        try:
            self.gather()
        finally:
            for handle in self._handles:
                handle.remove()
            for slot in self.slots:
                slot.detach()
            self.slots = []

    def abandon(self) -> bool:
        """Lets go of the parameters and their gradients; tells whether all reductions had ended."""
        for handle in self._handles:
            handle.remove()
        for slot in self.slots:
            slot.parameter.grad = None
        ended = all(slot.done() for slot in self.slots)
        self.slots = []
        self._deferred.forget()
        self.open = False
        return ended

    def _before_gradient(self, slot: Slot) -> None:
        if slot.due:
            self.finish(slot)
        if slot.phase is Phase.POSTED:
            slot.spill()  # waiting could be for ever: a rank may post this one only at its step
        elif slot.phase is Phase.REDUCED:
            slot.reopen()
            slot.armed = False
            self._expecting.add(slot)
            torch.autograd.Variable._execution_engine.queue_callback(self._restore)

    def _restore(self) -> None:
        """The backward is over: where no gradient came, autograd.grad had only asked for one."""
        while self._expecting:
            self._expecting.pop().restore()

    def _on_gradient(self, slot: Slot) -> None:
        self._expecting.discard(slot)
        if self._watch.synchronize:
            self._open()
        if not self.open:
            return
        task: int = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            self._backwards += 1
            self._agreed = False
        if slot.posted:
            slot.extra = self._extra = True
        elif self._watch.synchronize and self._eager:
            self._arm()
            self._arrive(slot)

    def _arm(self) -> None:
        """Have the hooks count the gradients to come in this backward by themselves."""
        if not self._armed:
            self._armed = True
            for group in self.groups:
                group.arm()
            torch.autograd.Variable._execution_engine.queue_callback(self.disarm)

    def disarm(self) -> None:
        """Have the hooks report each gradient again."""
        if self._armed:
            self._armed = False
            for group in self.groups:
                group.disarm()

    def _cut(self, slots: list[Slot]) -> None:
        """Cuts a sequence of gradients, of which none is posted, into groups."""
        self.groups += cut(slots, self.group_bytes, self._exchange, average=self._average)
        for group in self.groups:
            for slot in group.slots:
                slot.gradient_group = group
        self._order = InOrder([group.key for group in self.groups])

    def _tune(self) -> None:
        """A step is over: the next one may have other groups.

        What each rank decides by itself all must decide alike. So only that counts which the
        reductions of the step before this one have told: every rank has waited for all of them.
        """
        self._parity ^= 1
        changed = self._tuning.step(self.slots)
        for group in self.groups:
            for slot, use in group.changes[self._parity]:
                slot.use = use if slot.use is Use.EVERYWHERE else Use.SOMEWHERE
                changed = True
            group.changes[self._parity].clear()
        if changed:
            self.groups = []
            self._cut(self.slots)

    def _arrive(self, slot: Slot) -> None:
        """A gradient of this rank is whole: its group is posted when it was the last one."""
        group = slot.gradient_group
        if group.arrive(slot):
            self._whole(group)

    def _whole(self, group: GradientGroup) -> None:
        """The gradients of a group have all come."""
        if self._exchange.matches_by_key:
            self._post(group)
        else:
            by_key = {group.key: group for group in self.groups}
            for key in self._order.offer(group.key):
                self._post(by_key[key])

    def _make_local(self, slot: Slot) -> None:
        self.finish(slot)
        if slot.phase is Phase.REDUCED:
            slot.reopen()

    def _open(self) -> None:
        if not self.open:
            self.open = True
            self._watch.refresh()

    def _post(self, group: GradientGroup) -> None:
        self._open()
        for slot in group.slots:
            if slot.posting is not None:  # of a group that was cut otherwise
                self.finish(slot)
        self._recorder.posted(group.post(self._parity), len(group.slots))

    def _post_extras(self) -> None:
        bits = torch.tensor([slot.extra for slot in self.slots], dtype=torch.uint8)
        self._exchange.agree(self._key, bits)
        for slot, again in zip(self.slots, bits.tolist(), strict=True):
            if again:
                if slot.phase is not Phase.LOCAL:
                    slot.take_back()
                slot.extra = False
                (alone,) = cut([slot], 0, self._exchange, average=self._average)
                self._post(alone)

    def _sweep(self) -> None:
        """Takes all steps that are due and need no waiting."""
        if self._deferred:
            self._deferred.sweep()
            self._settle()

    def _settle(self) -> None:
        if not self._deferred:
            self._recorder.settled()
        self._watch.refresh()
