"""The choice, for each link, between sends by the NIC engine and by the computing thread.

A delegated send runs in the engine beside the computation, and costs the computing thread a copy
and a posting. An inline send blocks the computing thread until the link has accepted the message.
On a link as fast as memory an inline send is cheaper. On any other link it costs the whole delay.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

from slackline.env import DELEGATIONS
from slackline.errors import UsageError
from slackline.pipeline._record import StepRecord
from slackline.units import show_time

__all__ = ["Delegation"]

_FAST = 0.05
"""The fraction of a forward above which a link's delay rules out inline sends without a trial."""
_TRIALS = 2
_BETTER = 0.8
"""The largest ratio of an inline send's cost to a delegated send's at which inline is chosen."""


@dataclass(slots=True)
class _Link:
    delegated: deque[int]
    inline: deque[int]
    trials: int = 0
    chosen: bool = False
    reason: str = "not measured yet"


class Delegation:
    """The choice whether the engine or the computing thread sends, for each link of a rank.

    A link is named by its number: link n joins the stages n and n + 1.
    """

    def __init__(self, mode: str) -> None:
        if mode not in DELEGATIONS:
            raise UsageError(f'delegation must be one of {", ".join(DELEGATIONS)}, not "{mode}"')
        self._mode = mode
        self._links: dict[int, _Link] = {}

    def inline(self, link: int) -> bool:
        """Return whether the computing thread itself sends over this link."""
        if self._mode != "auto":
            return self._mode == "never"
        known = self._links.get(link)
        return known is not None and known.chosen

    def learn(self, record: StepRecord) -> None:
        """Record the costs of a step's sends; choose for each link which thread sends more cheaply.

        The sender is either the computing thread itself or the engine.

        The first step touches cold memory, but its costs hardly change the medians.
        """
        if self._mode != "auto":
            return
        for link in {sent.link for sent in record.sends}:
            known = self._links.setdefault(link, _Link(deque(maxlen=8), deque(maxlen=8)))
            costs = [sent.cost_ns for sent in record.sends if sent.link == link]
            inline = any(sent.inline for sent in record.sends if sent.link == link)
            (known.inline if inline else known.delegated).append(round(median(costs)))
            self._choose(link, known, record)

    def reasons(self) -> dict[int, str]:
        """Return for each link a text that says whether its sends are inline, and why."""
        if self._mode != "auto":
            return {}
        return {link: known.reason for link, known in sorted(self._links.items())}

    def _choose(self, link: int, known: _Link, record: StepRecord) -> None:
        forward = max(record.times_ns(stage)[0] for stage, _ in record.peak_held)
        delays = [came.delay_ns for came in record.came if came.link == link]
        delay = round(median(delays)) if delays else 0
        if delay > _FAST * forward:
            known.chosen = False
            known.reason = (
                f"delegated: {show_time(delay)} under way, a forward takes {show_time(forward)}"
            )
            return
        if known.trials < _TRIALS:
            known.trials += len(known.delegated) >= _TRIALS
            known.chosen = known.trials > 0
            known.reason = "being tried"
            return
        ours, engines = median(known.inline or (0,)), median(known.delegated)
        known.chosen = bool(known.inline) and ours <= _BETTER * engines
        known.reason = (
            f"{'inline' if known.chosen else 'delegated'}: a send costs {show_time(ours)} inline, "
            f"{show_time(engines)} delegated"
        )
