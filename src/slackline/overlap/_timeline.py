"""The phases of the training thread and its waits, which split each reduction into two parts.

    phase of the thread    forward | backward          | step  | forward
    waits                          |                   |     w | w
    a reduction                    |          --------------------
    hidden                         |          ---------|-----  |
    exposed                        |                   |     - | -

A reduction is *exposed* while the training thread waits for communication, and *hidden* while the
thread does anything else.
"""

from bisect import bisect_right
from collections.abc import Iterable
from enum import IntEnum

__all__ = ["Split", "Timeline", "TrainingPhase"]

MOST_SPANS = 4096
"""The number of latest spans that are kept: several steps, even with a wait for each gradient."""


class TrainingPhase(IntEnum):
    """A phase of a training step on one rank."""

    FORWARD = 0
    """The forward of the wrapped module."""
    BACKWARD = 1
    """The time from the end of a forward to the next forward or to the call of `step`."""
    STEP = 2
    """The time from the call of an optimizer's `step` to the next forward."""


_WAIT = 3
"""The kind of a span in which the training thread waits; the other kinds are the phases."""

Split = tuple[int, int, int]
"""A time for each TrainingPhase, in nanoseconds."""


class Timeline:
    """The spans of a training thread: its phases, without the waits for communication in them.

    The optimizers of one model share a timeline. Times are nanoseconds of a monotonic clock and
    never decrease from call to call. One thread at a time may use the object.
    """

    def __init__(self) -> None:
        """Begin at the clock's zero, in the phase STEP, which lasts until the first forward."""
        self.phase = TrainingPhase.STEP
        self._starts = [0]
        self._kinds = [int(self.phase)]
        self._sums: list[Split] = [(0, 0, 0)]
        """For each span, the time of each phase before that span."""

    def enter(self, phase: TrainingPhase, now_ns: int) -> None:
        """Begin a phase at the time `now_ns`."""
        if phase is not self.phase:
            self.phase = phase
            self._begin(phase, now_ns)

    def wait(self, began_ns: int, ended_ns: int) -> None:
        """Record a wait within the present phase."""
        self._begin(_WAIT, began_ns)
        self._begin(self.phase, ended_ns)

    def hidden(self, began_ns: int, ended_ns: int) -> Split:
        """Return the time of each phase within [began_ns, ended_ns) in which the thread ran.

        Time before the latest 4096 spans does not count.
        """
        last = bisect_right(self._starts, began_ns) - 1
        if last >= 0 and (last + 1 == len(self._starts) or ended_ns < self._starts[last + 1]):
            kind = self._kinds[last]
            ns = ended_ns - began_ns
            return (ns if kind == 0 else 0, ns if kind == 1 else 0, ns if kind == 2 else 0)
        (f, b, s), (f_end, b_end, s_end) = self._until(began_ns), self._until(ended_ns)
        return f_end - f, b_end - b, s_end - s

    def hidden_once(self, spans: Iterable[tuple[int, int]]) -> int:
        """Return the time within at least one of `spans` (start, end) in which the thread ran."""
        total = until_ns = 0
        for start_ns, end_ns in sorted(spans):
            since_ns = max(start_ns, until_ns)
            if since_ns < end_ns:
                total += sum(self.hidden(since_ns, end_ns))
                until_ns = end_ns
        return total

    def _until(self, time_ns: int) -> Split:
        """Return the time of each phase from the first kept span to `time_ns`."""
        last = max(0, bisect_right(self._starts, time_ns) - 1)
        found = list(self._sums[last])
        if (kind := self._kinds[last]) != _WAIT:
            found[kind] += max(0, time_ns - self._starts[last])
        forward, backward, step = found
        return forward, backward, step

    def _begin(self, kind: int, now_ns: int) -> None:
        self._sums.append(self._until_last(now_ns))
        self._starts.append(now_ns)
        self._kinds.append(int(kind))
        if len(self._starts) == 2 * MOST_SPANS:
            del self._starts[:MOST_SPANS]
            del self._kinds[:MOST_SPANS]
            del self._sums[:MOST_SPANS]

    def _until_last(self, now_ns: int) -> Split:
        """Return the time of each phase up to `now_ns`, which is in the last span."""
        forward, backward, step = self._sums[-1]
        ns = now_ns - self._starts[-1]
        match self._kinds[-1]:
            case 0:
                forward += ns
            case 1:
                backward += ns
            case 2:
                step += ns
        return forward, backward, step
