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

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from slackline.overlap._exchange import Exchange
from slackline.overlap._order import InOrder
from slackline.overlap._recorder import Recorder
from slackline.overlap._slot import Clear, Phase, Slot
from slackline.overlap._stepper import Settings, settings_of, step_some
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
    ) -> None:
        """`key`: for agreements, one that no slot has. `eager` False: post nothing before flush."""
        self.slots: list[Slot] = []
        self.open = False
        """Whether this round has gradients that are the ranks' common business."""
        self._optimizer = optimizer
        self._exchange = exchange
        self._watch = watch
        self._recorder = recorder
        self._key = key
        self._eager = eager
        self._order = InOrder(())
        self._handles: list[RemovableHandle] = []
        self._due: dict[int, Slot] = {}
        self._settings: Settings = ()
        self._expecting: set[Slot] = set()
        self._task = -1
        self._backwards = 0
        self._agreed = False

    @property
    def pending(self) -> bool:
        """Whether some parameter has not taken its step yet."""
        return bool(self._due)

    @property
    def reduced(self) -> bool:
        """Whether every gradient of the round has been waited for."""
        return all(slot.posted and slot.phase is Phase.REDUCED for slot in self.slots)

    @property
    def needs_agreement(self) -> bool:
        """Whether `gather` would have to wait for the other ranks to gather as well."""
        return self._backwards > 1 and not self._agreed

    def add(self, slots: Iterable[Slot]) -> None:
        """Takes slots over, in the same order on all ranks, and hooks their parameters."""
        for slot in slots:
            self.slots.append(slot)
            parameter: Any = slot.parameter
            self._handles += (
                parameter.register_hook(_Hook(self, slot, "_before_gradient")),
                parameter.register_post_accumulate_grad_hook(_Hook(self, slot, "_on_gradient")),
            )
        self.slots.sort(key=lambda slot: -slot.index)
        self._order = InOrder([slot.index for slot in self.slots])

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
            slot.extra = True
            self._backwards, self._agreed = max(2, self._backwards), False
        elif not self._eager:
            return
        elif self._exchange.matches_by_key:
            self._post(slot)
        else:
            self._post_in_order(slot)

    def flush(self) -> None:
        """Posts what this rank has not posted in this round; all ranks must come here once."""
        for slot in self.slots:
            if not slot.posted and slot.parameter.requires_grad:
                self._make_local(slot)
                self._post(slot)
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
        self._settings = settings_of(self._optimizer)
        for slot in sorted(self.slots, key=lambda slot: slot.priority):
            if slot.phase is not Phase.POSTED:
                slot.grad = slot.parameter.grad
                if slot.grad is None:
                    continue
            slot.due = True
            self._due[slot.index] = slot
        self._recorder.stepped()
        self.close_round()
        self._sweep()

    def end_step(self) -> None:
        """A step of all parameters together has been taken."""
        self._recorder.stepped()
        self.close_round()

    def close_round(self) -> None:
        """The round's gradients have been used or thrown away."""
        for slot in self.slots:
            slot.posted = slot.extra = False
        self._order.restart()
        self._backwards = 0
        self._agreed = self.open = False
        self._settle()

    def finish(self, slot: Slot, companions: Iterable[Slot] = ()) -> None:
        """Waits for one gradient; if its step is due, takes it, and those of ready companions."""
        if not slot.done():
            self._sweep()
            begin = self._recorder.clock()
            slot.wait()
            self._recorder.waited(self._recorder.clock() - begin, late=slot.due)
        slot.wait()
        if slot.due:
            others = (other for other in companions if other is not slot)
            self._run([slot, *(other for other in others if other.due and other.done())])

    def finish_all(self) -> None:
        """Takes every step that is due."""
        while self._due:
            self.finish(next(iter(self._due.values())))

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
        self._due.clear()
        self.open = False
        return ended

    def _before_gradient(self, slot: Slot) -> None:
        if slot.due:
            self.finish(slot)
        if slot.phase is Phase.POSTED:
            slot.spill()  # waiting could be for ever: a rank may post this one only at its step
        elif slot.phase is Phase.REDUCED:
            slot.reopen()
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
            slot.extra = True
        elif not (self._watch.synchronize and self._eager):
            return
        elif self._exchange.matches_by_key:
            self._post(slot)
        else:
            self._post_in_order(slot)

    def _post_in_order(self, slot: Slot) -> None:
        by_index = {slot.index: slot for slot in self.slots}
        for index in self._order.offer(slot.index):
            self._post(by_index[index])

    def _make_local(self, slot: Slot) -> None:
        self.finish(slot)
        if slot.phase is Phase.REDUCED:
            slot.reopen()

    def _open(self) -> None:
        if not self.open:
            self.open = True
            self._watch.refresh()

    def _post(self, slot: Slot) -> None:
        self._open()
        slot.post()
        self._recorder.posted(slot.nbytes)

    def _post_extras(self) -> None:
        bits = torch.tensor([slot.extra for slot in self.slots], dtype=torch.uint8)
        self._exchange.agree(self._key, bits)
        for slot, again in zip(self.slots, bits.tolist(), strict=True):
            if again:
                if slot.phase is not Phase.LOCAL:
                    slot.take_back()
                slot.extra = False
                self._post(slot)

    def _sweep(self) -> None:
        """Takes all steps that are due and need no waiting."""
        if self._due:
            self._run([slot for slot in self._due.values() if slot.done()])

    def _run(self, ready: list[Slot]) -> None:
        members: list[tuple[int, Tensor]] = []
        for slot in ready:
            slot.wait()
            slot.parameter.grad = slot.grad
            if slot.grad is not None:
                members.append((slot.group, slot.parameter))
        step_some(self._optimizer, self._settings, members)
        for slot in ready:
            slot.due = False
            del self._due[slot.index]
            if slot.clear is not Clear.NO:
                slot.forget(slot.clear)
        self._settle()

    def _settle(self) -> None:
        if not self._due:
            self._recorder.settled()
        self._watch.refresh()


class _Hook:
    """A hook of a parameter. It holds on to nothing: Python cannot see cycles through autograd."""

    def __init__(self, session: Session, slot: Slot, method: str) -> None:
        self._session = weakref.ref(session)
        self._slot = weakref.ref(slot)
        self._call = getattr(Session, method)

    def __call__(self, _: Tensor) -> None:
        session, slot = self._session(), self._slot()
        if session is not None and slot is not None:
            self._call(session, slot)
