"""The evidence that trainings have the same bits: the probe, the hash of each step, and tensors."""

import logging
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from slackline.overlap._notes import Notes
from slackline.overlap.certificate._certificate import Certificate
from slackline.overlap.certificate._conditions import conditions
from slackline.overlap.certificate._probe import compare, pin_threads, refusal
from slackline.overlap.certificate._state import HashedState, Words, text_of
from slackline.overlap.certificate._tensors import TensorRecorder
from slackline.overlap.exchange import Exchange
from slackline.records import Conditions, StateHash

__all__ = ["Evidence"]

_log = logging.getLogger("slackline.overlap")


class Gradients(Protocol):
    """The gradients of a model from one virtual rank after the other."""

    @property
    def updating(self) -> bool:
        """Whether an optimizer step is pending for some parameter."""

    def finish_all(self) -> None:
        """Block until every pending optimizer step is taken."""

    def wait_reduced(self) -> None:
        """Block until the gradients of the step are reduced."""

    def present(self) -> Sequence[Tensor | None]:
        """Return the gradients of the present part, in the same order on all ranks."""


class Evidence:
    """One rank's hashes of a training with virtual ranks, and its comparison with other ranks."""

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        exchange: Exchange,
        report: Notes,
        *,
        exact: bool,
        hash_every: int,
        recorded: range | None,
    ) -> None:
        """Pin the number of threads, and prepare hashes of states and tensors.

        The gradients are added by `attach`, since the hooks of this object must come first. With
        `exact` ranks that compute other bits are refused. `hash_every` is the number of steps from
        one hash of the state to the next, 0 for none; without telemetry and log there is none. The
        hashes of all tensors are recorded in the steps of `recorded`. Blocks on all ranks.
        """
        self.exact: bool | None = None
        """Whether all ranks have computed the same bits; None before the first step's probe."""
        self._optimizers = optimizers
        self._exchange = exchange
        self._report = report
        self._demanded = exact
        self._rank = report.rank
        self._gradients: Sequence[Gradients] = ()
        if exchange.size == 1:
            self.exact = True
        threads, had = pin_threads(exchange)
        if len(set(had)) > 1:
            reason = f"the ranks had {', '.join(map(str, had))}; the number can change the bits"
            report.decided("threads", str(threads), reason)
        self._tell_conditions()
        self._state = HashedState(module, optimizers)
        self._certificate: Certificate | None = None
        if report.read and hash_every:
            self._certificate = Certificate(
                self._state,
                exchange.rank,
                exchange.size,
                self._emit,
                self._settled,
                every=hash_every,
            )
            report.on_settled = self._certificate.advance
        self._tensors: TensorRecorder | None = None
        if recorded is not None and report.read:
            self._tensors = TensorRecorder(module, self._rank, report.write, recorded)
        self._stepped: int | None = None

    def attach(self, gradients: Sequence[Gradients]) -> None:
        """Take the gradients of the optimizers' parameters."""
        self._gradients = gradients

    def step_began(self, buffers: Mapping[int, Tensor]) -> None:
        """Act on the beginning of a step, whose buffers are now as in `buffers`, by their `id`."""
        self._record_state()
        if self._certificate is not None:
            self._certificate.step_began(buffers)

    def part_began(self, step: int, virtual_rank: int) -> None:
        """Act on the beginning of a virtual rank."""
        if self._tensors is not None:
            self._tensors.part_began(step, virtual_rank)

    def part_ended(self) -> None:
        """Act on the end of the backward pass of a virtual rank."""
        if self._tensors is not None:
            self._tensors.part_ended()

    def probed(self) -> None:
        """Compare the gradients that each rank has computed of virtual rank 0.

        Raises MismatchError if they differ, unless the wrapper was told to go on.
        """
        grads = chain.from_iterable(each.present() for each in self._gradients)
        sentence = compare(grads, self._optimizers, self._exchange)
        self.exact = not sentence
        if not sentence:
            return
        if self._demanded:
            raise refusal(sentence, self._exchange.rank)
        self._report.decided("exact", "False", sentence)
        if self._exchange.rank == 0:
            _log.warning("the training is inexact: %s", sentence)

    def step_ended(self, step: int) -> None:
        """Act on the end of a step's last part on this rank, before the optimizers' steps."""
        self._stepped = step
        if self._certificate is not None:
            self._certificate.step_ended(step)
        if self._tensors is not None:
            self._tensors.sums(step, self._gradients)

    def ended(self) -> None:
        """Write down the hash of the present state; no update may be pending."""
        if self._certificate is not None:
            self._certificate.hash_now()

    def close(self) -> None:
        """Write what is known, the hash of the state after the latest step included."""
        self._settled(True)
        self._record_state()
        if self._tensors is not None:
            self._tensors.close()
        if self._certificate is not None:
            self._report.on_settled = None
            self._certificate.close()

    def abandon(self) -> None:
        """End at once."""
        self._report.on_settled = None
        if self._tensors is not None:
            self._tensors.close()
        if self._certificate is not None:
            self._certificate.abandon()

    def _record_state(self) -> None:
        step, self._stepped = self._stepped, None
        if self._tensors is not None and step is not None and self._tensors.records(step):
            self._settled(True)
            self._tensors.state(step, self._state)

    def _settled(self, wait: bool) -> bool:
        """Return whether no update is pending; with `wait`, take the pending ones first."""
        if wait:
            for each in self._gradients:
                each.finish_all()
        return not any(each.updating for each in self._gradients)

    def _emit(self, step: int, part: int, words: Words) -> None:
        self._report.write(
            StateHash(
                rank=self._rank,
                time_ns=time.time_ns(),
                step=step,
                part=part,
                parts=self._exchange.size,
                hash=text_of(words),
                exact=self.exact is not False,
            )
        )

    def _tell_conditions(self) -> None:
        self._report.write(
            Conditions(rank=self._rank, time_ns=time.time_ns(), values=conditions(self._optimizers))
        )
