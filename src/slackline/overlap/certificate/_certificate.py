"""The hash of a training's state after each step, computed while the next step is under way.

    step t       parts, optimizer.step()      updates are pending
    step t + 1   first forward                the updates are taken
                 all that follows             a thread hashes some pages of the state after step t
                 end of the last part         wait for it
                 optimizer.step()

The parameters stay as they are from the end of the pending updates until the next call of the
optimizer's `step`. Buffers change with each part, so that their values at the beginning of the step
are hashed. Each rank writes down the hash of its pages; readers add those of all ranks.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from slackline.overlap.certificate._state import HashedState, Words

__all__ = ["Certificate"]


class Certificate:
    """The hashes of the states after the steps of a training: those of one rank's pages."""

    def __init__(
        self,
        state: HashedState,
        rank: int,
        size: int,
        emit: Callable[[int, int, Words], None],
        settle: Callable[[bool], bool],
        *,
        every: int,
    ) -> None:
        """Create the certificate of one rank of `size` ranks.

        `emit` receives the number of a step, the number of this rank's part and the hash of the
        part. `settle` returns whether no update of a parameter is pending; with True it takes the
        pending ones first. The states after the steps `every` - 1, 2 * `every` - 1 and so on are
        hashed, and that after the last step.
        """
        self._state = state
        self._rank, self._size = rank, size
        self._emit = emit
        self._settle = settle
        self._every = every
        self._thread = ThreadPoolExecutor(1, "slackline-hash")
        self._stepped: int | None = None
        """The latest step, while its state may still be hashed."""
        self._awaited: int | None = None
        """The step whose state is to be hashed as soon as no update is pending."""
        self._buffers: Mapping[int, Tensor] | None = None
        self._hashing: Future[Words] | None = None

    def step_began(self, buffers: Mapping[int, Tensor]) -> None:
        """Prepare the hash of the latest step's state, since the next step begins.

        `buffers` maps the `id` of each buffer to a copy, which stays unchanged until `step_ended`.
        """
        self._end()
        step, self._stepped = self._stepped, None
        if step is not None and (step + 1) % self._every == 0:
            self._awaited, self._buffers = step, buffers
            self.advance()

    def advance(self) -> None:
        """Begin to hash the state that is awaited, if no update is pending."""
        if self._awaited is None or self._hashing is not None or not self._settle(False):
            return
        self._state.refresh(self._buffers)
        pages = self._state.part(self._part(self._awaited), self._size)
        self._hashing = self._thread.submit(self._state.digest, pages)

    def step_ended(self, step: int) -> None:
        """End the hash that is under way, since the optimizer's step may follow.

        `step` is the number of the step whose parts have ended.
        """
        self._end()
        self._stepped = step

    def hash_now(self) -> None:
        """Hash the state after the latest step, unless that is done; no update may be pending."""
        self._end()
        if self._stepped is not None:
            self._awaited, self._buffers, self._stepped = self._stepped, None, None
            self.advance()
            self._end()

    def close(self) -> None:
        """Hash the state after the latest step, in which no update may be pending, and end."""
        self.hash_now()
        self._thread.shutdown()

    def abandon(self) -> None:
        """End without the hash of the latest step."""
        if self._hashing is not None:
            self._hashing.result()
        self._thread.shutdown()

    def _end(self) -> None:
        """Write down the hash that is awaited, if any; no thread reads the state afterwards."""
        if self._awaited is None:
            return
        if self._hashing is None:
            self._settle(True)
            self.advance()
        assert self._hashing is not None
        words, step = self._hashing.result(), self._awaited
        self._hashing = self._awaited = None
        self._emit(step, self._part(step), words)

    def _part(self, step: int) -> int:
        """Return the number of this rank's part; the parts rotate over the ranks."""
        return (self._rank + step) % self._size
