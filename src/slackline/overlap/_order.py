"""The fixed order in which ranks post where reductions are matched by the order of the calls.

Ranks emit gradients in different orders, so a gradient that is ready early is held back until
everything before it has been posted.

    fixed order   w3 w2 w1 w0
    emitted          w2 w3    w1 w0
    posted              w3,w2 w1 w0
"""

from collections.abc import Iterator, Sequence

__all__ = ["InOrder"]


class InOrder:
    """Releases keys in one fixed order. Pure."""

    def __init__(self, order: Sequence[int]) -> None:
        self._order = tuple(order)
        self._next = 0
        self._held: set[int] = set()

    def offer(self, key: int) -> Iterator[int]:
        """The keys that may be posted now that `key` is ready."""
        self._held.add(key)
        while self._next < len(self._order) and self._order[self._next] in self._held:
            self._next += 1
            yield self._order[self._next - 1]

    def restart(self) -> None:
        """Begins the next round; keys that were held back count as posted elsewhere."""
        self._next = 0
        self._held.clear()
