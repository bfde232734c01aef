"""The waits of a rank's training thread for a core, which part slow hosts from slow ranks.

A step of twice the work waits twice as long on a busy host. Only waits beyond those that the
present work would have had before count as a change of the host.
"""

from slackline.detect import Baseline

__all__ = ["CoreWaits"]

_GAIN = 0.3
"""The weight of the latest step in the present times."""


class CoreWaits:
    """The times of one training thread on a core and in waits for one, as usual and at present."""

    def __init__(self, run: Baseline, delay: Baseline) -> None:
        """Begin without readings; the baselines learn the usual times of a step."""
        self._run, self._delay = run, delay
        self._run_ns = self._delay_ns = 0.0
        self._taken = False

    @property
    def present_ns(self) -> float | None:
        """The present wait for a core in a step, smoothed; None where the waits are not known."""
        return self._delay_ns if self._taken else None

    @property
    def excess_ns(self) -> float:
        """The present wait beyond the usual one for the present work; 0 where it is not known."""
        if not self._taken or not self._delay.known:
            return 0.0
        usual_ns = self._run.middle
        growth = max(1.0, self._run_ns / usual_ns) if usual_ns else 1.0
        return max(0.0, self._delay_ns - self._delay.middle * growth)

    def take(self, run_ns: int | None, delay_ns: int | None, *, calm: bool) -> None:
        """Add the times of a step; `calm` says that the step was as usual."""
        if run_ns is None or delay_ns is None:
            return
        gain = _GAIN if self._taken else 1.0
        self._run_ns += gain * (run_ns - self._run_ns)
        self._delay_ns += gain * (delay_ns - self._delay_ns)
        self._taken = True
        if calm:
            self._run.add(run_ns)
            self._delay.add(delay_ns)
