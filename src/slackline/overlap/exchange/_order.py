"""A fixed posting order, for exchanges that match reductions by the order of the calls.

Ranks compute gradients in different orders, so a gradient that is ready early waits until all
gradients before it in the fixed order are posted.

    fixed order   w3 w2 w1 w0
    computed         w2 w3    w1 w0
    posted              w3,w2 w1 w0
"""

from collections.abc import Iterator, Sequence

__all__ = ["InOrder"]


class InOrder:
    """A reorder buffer that releases keys of reductions in one fixed order; it does no I/O."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)
        self._next = 0
        self._held: set[int] = set()

    def offer(self, key: int) -> Iterator[int]:
        """Record that a reduction is ready; yield the keys of reductions that may now be posted."""
        self._held.add(key)
        while self._next < len(self._order) and self._order[self._next] in self._held:
            self._next += 1
            yield self._order[self._next - 1]

    def restart(self) -> None:
        """Begin the next training step; drop all keys that wait: the caller has posted them."""
        self._next = 0
        self._held.clear()
