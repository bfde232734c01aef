"""The times of all_reduce plans that earlier groups of an engine have measured.

Timing the plans takes longer than all other work of a change of members. So the new group takes the
times of an earlier group of its size. Where there was none, it takes the times that the cost model
expects, with the latency and the rate of the group that was measured last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slackline.nic.collectives._plans import PlanBook

__all__ = ["KnownTimes"]

Agree = Callable[[Sequence[int]], Sequence[int]]
"""A function that returns the maximum over all ranks of each value."""


class KnownTimes:
    """The times that groups of one engine have measured. Threads may open several at once."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, bool, tuple[str, ...]], tuple[int, ...]] = {}
        """The times by the number of ranks, whether they share memory, and the timed plans."""
        self._last: PlanBook | None = None
        """The book of the group that has learned times last."""
        self._costs: dict[bool, tuple[int, int]] = {}
        """The latency in ns and the ns per GB of a port, by whether the ranks share memory."""

    def note(self, book: PlanBook, measured: Sequence[int]) -> None:
        """Store the times that the group of `book` has measured and learned."""
        self._times[_key(book)] = tuple(measured)
        latency_ns, bytes_per_second = book.costs
        self._costs[book.all_shared] = latency_ns, max(1, round(1e18 / bytes_per_second))
        self._last = book

    def teach(self, book: PlanBook, agree: Agree) -> bool:
        """Have `book` choose by known times; return False if no rank knows any.

        Every rank must call this. A rank that has come new learns the times from the others, and
        where several ranks know times, the longest count, so that all ranks choose equally. The
        book then chooses the plans for the shapes of operations that the last group has run.
        """
        count = 2 * len(book.timed())
        mine = self._times.get(_key(book), (0,) * count)
        agreed = tuple(agree([*mine, *self._costs.get(book.all_shared, (0, 0))]))
        times, (latency_ns, ns_per_gb) = agreed[:count], agreed[count:]
        last = self._last
        if all(times):
            book.learn_timed(times)
            self.note(book, times)
        elif latency_ns:
            book.expect(latency_ns, 1e18 / ns_per_gb)
            self._costs[book.all_shared], self._last = (latency_ns, ns_per_gb), book
        else:
            return False
        if last is not None:
            book.follow(last)
        return True


def _key(book: PlanBook) -> tuple[int, bool, tuple[str, ...]]:
    return book.ranks, book.all_shared, book.timed()
