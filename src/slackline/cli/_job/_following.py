"""The time from a job's start to its end: its output is shown, and signals end it.

The first signal asks the ranks to end by SIGTERM, so that they can save their state. The second one
kills them.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from slackline.cli._job._launch import SHUTDOWN, Job
from slackline.cli._job._shown import Shown
from slackline.cli._job._stage import Stage
from slackline.errors import UsageError
from slackline.units import format_duration_ns, parse_duration_ns
from slackline.views.terminal import Report, Screen

__all__ = ["Ender", "follow", "format_time", "shutdown_time"]

_TICK = timedelta(milliseconds=100)

_TORCHRUN_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torchrun's own variable for the time, in seconds."""

_ONE_REQUEST_S = 0.5
"""The time in which further signals are taken for the first request once more.

`timeout` of coreutils, for example, signals the command and then its whole process group.
"""


def shutdown_time(given: str | None, environment: Mapping[str, str]) -> timedelta:
    """Return the time that ranks have to end after SIGTERM.

    `given` is the value of --shutdown-timeout: a duration, or seconds without a unit, as torchrun
    takes them. Without it torchrun's variable in `environment` counts. Raises UsageError for a
    wrong value.
    """
    name, text = "--shutdown-timeout", given
    if text is None:
        name, text = _TORCHRUN_S, environment.get(_TORCHRUN_S) or None
    if text is None:
        return SHUTDOWN
    try:
        duration_ns = parse_duration_ns(f"{text}s" if text.isdecimal() else text)
    except UsageError as error:
        raise UsageError(f"{name} {text}: {error}") from None
    return timedelta(microseconds=duration_ns // 1000)


def format_time(time: timedelta) -> str:
    """Return a duration in its largest whole unit, such as "5min"."""
    return format_duration_ns(time // timedelta(microseconds=1) * 1000)


class Ender:
    """The reaction of a job to the signals that the command has received."""

    def __init__(
        self,
        job: Job,
        grace: timedelta,
        received: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """End `job` by the signals that are appended to `received`; `clock` counts seconds."""
        self._job, self._grace = job, grace
        self._received, self._clock = received, clock
        self._seen = 0
        self._stopped_s = 0.0
        self.state = ""
        """What the job is doing because of a signal; empty before the first one."""

    def look(self) -> str:
        """Act on the signals since the last call; return a line to show, or an empty text."""
        new = self._received[self._seen :]
        self._seen += len(new)
        if not new:
            return ""
        name = signal.Signals(new[-1]).name
        if not self.state:
            self._stopped_s = self._clock()
            self._job.stop()
            self.state = "ending all ranks"
            return (
                f"{name}: the ranks have {format_time(self._grace)} to end "
                "(--shutdown-timeout); Ctrl-C or SIGTERM again kills them"
            )
        again = new[-1] in (signal.SIGINT, signal.SIGTERM)
        if not again or self._clock() - self._stopped_s < _ONE_REQUEST_S:
            return ""
        self._job.kill()
        self.state = "killing all ranks"
        return f"{name} came again: all ranks are killed"


def follow(
    job: Job, stage: Stage, report: Report, screen: Screen, ender: Ender, shown: Shown
) -> None:
    """Show the job's output and progress until it has ended."""
    ended = False
    while not ended:
        ended = job.wait(_TICK)
        report.update()
        if said := stage.watch(job, report.opened(), time.monotonic_ns()):
            screen.note(said)
        for said in stage.left_out():
            screen.note(said)
        shown.show(screen, ended=ended)
        if said := ender.look():
            screen.note(said)
        for line in report.news(ended=ended):
            screen.note(line)
        screen.progress(ender.state or report.progress())
