"""The hash of a training's state after each step, computed while the next step is under way.

    step t       parts, optimizer.step()      updates are pending
    step t + 1   first forward                the updates are taken
                 all that follows             a thread hashes some pages of the state after step t
                 end of the last part         wait for it; add the hashes of all ranks
                 optimizer.step()

The parameters stay as they are from the end of the pending updates until the next call of the
optimizer's `step`. Buffers change with each part, so that their values at the beginning of the step
are hashed.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from slackline.overlap.certificate._state import HashedState, Words, text_of
from slackline.overlap.exchange import Exchange, Pending

__all__ = ["Certificate"]

_WORD = 1 << 64


class Certificate:
    """The hashes of the states after the steps of a training, on one rank."""

    def __init__(
        self,
        state: HashedState,
        exchange: Exchange,
        key: int,
        emit: Callable[[int, str], None],
        settle: Callable[[bool], bool],
        *,
        every: int,
    ) -> None:
        """Create a certificate that passes the number and the hash of a step to `emit` on rank 0.

        `key` is a key of the exchange that no other reduction uses. `settle` returns whether no
        update of a parameter is pending; with True it takes the pending ones first. The states
        after the steps `every` - 1, 2 * `every` - 1 and so on are hashed. All ranks pass the same
        `every`.
        """
        self._state = state
        self._exchange = exchange
        self._emit = emit
        self._settle = settle
        self._every = every
        self._thread = ThreadPoolExecutor(1, "slackline-hash")
        (self._sum,) = exchange.allocate([(2, torch.int64)])
        self._post = exchange.reduction(key, self._sum, average=False, exact=True)
        self._stepped: int | None = None
        """The latest step, while its state may still be hashed."""
        self._awaited: int | None = None
        """The step whose state is to be hashed as soon as no update is pending."""
        self._buffers: Mapping[int, Tensor] = {}
        self._hashing: Future[Words] | None = None
        self._reducing: tuple[int, Pending] | None = None

    def step_began(self, buffers: Mapping[int, Tensor]) -> None:
        """Prepare the hash of the latest step's state, since the next step begins.

        `buffers` maps the `id` of each buffer to a copy, which stays unchanged until `part_ended`.
        """
        self._stop()
        step, self._stepped = self._stepped, None
        if step is not None and (step + 1) % self._every == 0:
            self._awaited, self._buffers = step, buffers
            self.advance()

    def advance(self) -> None:
        """Begin to hash the state that is awaited, if no update is pending."""
        if self._awaited is None or self._hashing is not None or not self._settle(False):
            return
        self._state.refresh(self._buffers)
        # The parts rotate, so that each rank hashes each page once in a while.
        size = self._exchange.size
        mine = self._state.part((self._exchange.rank + self._awaited) % size, size)
        self._hashing = self._thread.submit(self._state.digest, mine)

    def step_ended(self, step: int) -> None:
        """End the hash that is under way, since the optimizer's step may follow.

        `step` is the number of the step whose parts have ended.
        """
        self._stepped = step
        if self._awaited is None:
            return
        if self._hashing is None:
            self._settle(True)
            self.advance()
        assert self._hashing is not None
        words, awaited = self._hashing.result(), self._awaited
        self._hashing = self._awaited = None
        self._take()
        self._sum.copy_(torch.tensor([*map(_signed, words)], dtype=torch.int64, device="cpu"))
        self._reducing = awaited, self._post(0)

    def close(self, last: Callable[[], str]) -> None:
        """Emit what is known, and the hash of the latest step's state, which `last` returns.

        No update may be pending. Blocks until the sums over the ranks are there.
        """
        self._stop()
        self._take()
        if self._stepped is not None and self._exchange.rank == 0:
            self._emit(self._stepped, last())
        self._thread.shutdown()

    def abandon(self) -> None:
        """End without the hashes that are not known yet."""
        self._stop()
        self._thread.shutdown()

    def _stop(self) -> None:
        """Let no thread read the state any more."""
        if self._hashing is not None:
            self._hashing.result()
        self._hashing = self._awaited = None

    def _take(self) -> None:
        """Emit the hash whose sum over the ranks was posted before."""
        if self._reducing is None:
            return
        step, pending = self._reducing
        self._reducing = None
        pending.wait()
        if self._exchange.rank == 0:
            low, high = (word % _WORD for word in self._sum.tolist())
            self._emit(step, text_of((low, high)))


def _signed(word: int) -> int:
    """Return an unsigned number of 64 bits as the signed one with the same bits."""
    return word - _WORD if word >= _WORD // 2 else word
