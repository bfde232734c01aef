"""Change detectors of a rank's own time in its steps: computation, and pauses between steps.

Time in which a rank waits for communication belongs to neither: a slow peer makes a rank wait
longer, but does not change its pace. The records of steps state the waits of `slackline.overlap`,
and the records of operations also those of the script's own collectives:

    | pause           | forward           | backward      | step called
      [all_reduce]      [late gradients]    [all_reduce]
"""

from collections import deque
from collections.abc import Iterable
from statistics import median

from slackline.causes._core_waits import CoreWaits
from slackline.detect import Baseline, Cusum, Runs
from slackline.records import PipelineStep, StepSummary

__all__ = ["Pace", "Quantity"]

_LEAST_NS = 1_000_000
"""Growth below this duration counts as jitter."""

_LEAST_SHARE = 0.10
"""Growth below this fraction of a usual step counts as jitter."""

_LEARN_STEPS = 12
"""The number of steps from which the usual duration is learned."""

_EVIDENCE, _RECOVERY = 4.0, 8.0
"""The number of steps in a row, clearly slower than usual or clearly as usual, for a change."""

_MEMORY, _EVERY, _NOISE_FACTOR = 128, 4, 3.0
_SURE, _MOST_EVIDENCE = 64, 16.0
_LEVEL_GAIN = 0.3
_RECENT, _LEAST_RECENT = 16, 4
"""The number of latest steps that give the present times, and the least number of them."""

_BEYOND = 2.0
"""The least ratio of a rank's waits for a core to those of other hosts, on one busy machine."""

_MOST_WAITS = 0.5
"""The largest part of a rank's time of computation that waits for a core may take, if what is left
is compared with other ranks: present time and waits are estimates, and scatter."""

_EXPLAINED = 0.5
"""The part of the longer own time that waits for a core must explain."""


class Quantity:
    """The change detector of one duration of a rank's steps."""

    def __init__(self) -> None:
        self.cusum = Cusum(_EVIDENCE, _RECOVERY)
        self.excess_ns = 0.0
        """The smoothed excess over the usual duration while a change is active."""
        self._baseline = _baseline()
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self._runs = Runs(_EVIDENCE, sure=_SURE, most=_MOST_EVIDENCE)

    @property
    def usual_ns(self) -> float:
        """The usual duration, 0 before it is learned."""
        return self._baseline.middle

    @property
    def present_ns(self) -> float | None:
        """The median of the latest steps; None before there are enough of them."""
        return median(self._recent) if len(self._recent) >= _LEAST_RECENT else None

    @property
    def short_ns(self) -> int:
        """The duration below which a quarter of the latest steps are; call it after a step."""
        return sorted(self._recent)[len(self._recent) // 4]

    def take(self, began_ns: int, value_ns: int, usual_step_ns: float) -> None:
        """Add the duration of the step that began at the Unix time `began_ns`."""
        baseline, cusum = self._baseline, self.cusum
        self._recent.append(value_ns)
        excess_ns = value_ns - baseline.middle
        if baseline.known:
            threshold = max(_LEAST_NS, _LEAST_SHARE * usual_step_ns, baseline.scatter)
            limit = cusum.threshold / 2 if cusum.active else threshold
            self._runs.take(late=excess_ns >= limit, told=cusum.active)
            cusum.evidence = self._runs.evidence
            turned = cusum.take(excess_ns, threshold, began_ns)
            if cusum.active:
                gain = 1.0 if turned else _LEVEL_GAIN
                self.excess_ns += gain * (excess_ns - self.excess_ns)
        if not cusum.active:
            self.excess_ns = 0.0
            baseline.add(value_ns)


class Pace:
    """The detectors of one rank, which reads the rank's steps in their order."""

    def __init__(self, *, recorded: bool = True) -> None:
        """Begin without steps; `recorded` says that their parts are known, such as pauses."""
        self.recorded = recorded
        self.restart()
        self.early_ns: int | None = None
        """The own time before the latest collectives, added up, of a rank without records of steps;
        None before there are enough of them."""
        self._late_in_forward_ns = 0
        self._late_in_step_ns = 0
        self._ended_ns: int | None = None
        self._staged = False
        self._began_ns: deque[int] = deque(maxlen=_RECENT)

    def restart(self) -> None:
        """Learn the usual durations anew, after a change of all ranks of the job."""
        self.compute = Quantity()
        self.pause = Quantity()
        self._step = _baseline()
        self.waits = CoreWaits(_baseline(), _baseline())

    @property
    def excess_ns(self) -> float:
        """The excess of the rank's own time in a step, computation and pauses, over the usual."""
        return self.compute.excess_ns + self.pause.excess_ns

    @property
    def own_ns(self) -> float | None:
        """The present time of computation in a step, without waits for a core that are known.

        None where it is not known, and for a stage of a pipeline, which need not compute as long as
        other stages. Where waits take most of the time, what they leave is too rough to tell.
        """
        present_ns, waits_ns = self.compute.present_ns, self.waits.present_ns or 0.0
        if self._staged or present_ns is None or waits_ns > _MOST_WAITS * present_ns:
            return None
        return present_ns - waits_ns

    @property
    def short_own_ns(self) -> float | None:
        """The same of the shorter steps: a quarter of the latest ones take less."""
        own_ns, present_ns = self.own_ns, self.compute.present_ns
        if own_ns is None or present_ns is None:
            return None
        return max(0.0, own_ns - present_ns + self.compute.short_ns)

    @property
    def pause_ns(self) -> float | None:
        """The present time between two steps, without waits for a core that are known.

        None where it is not known, and for a stage of a pipeline.
        """
        present_ns = self.pause.present_ns
        if self._staged or not self.recorded or present_ns is None:
            return None
        return max(0.0, present_ns - (self.waits.present_ns or 0.0))

    @property
    def step_ns(self) -> float:
        """The present duration of a step, waits included; 0 before the second one."""
        began = self._began_ns
        return (began[-1] - began[0]) / (len(began) - 1) if len(began) > 1 else 0.0

    @property
    def since_ns(self) -> int:
        """The Unix time from which the rank's own time is longer; call it only while it is."""
        cusums = (self.compute.cusum, self.pause.cusum)
        return min(cusum.since_ns for cusum in cusums if cusum.active)

    @property
    def crowded(self) -> bool:
        """Whether waits for a core explain half of the rank's longer own time at least."""
        slow = self.compute.cusum.active or self.pause.cusum.active
        return slow and self.waits.excess_ns >= _EXPLAINED * self.excess_ns

    def crowded_beyond(self, common_ns: float) -> bool:
        """Return whether the waits are twice `common_ns`, those of other hosts' ranks, at least,
        and whether their part beyond `common_ns` explains half of the longer own time too.
        """
        present_ns = self.waits.present_ns
        if present_ns is None or not self.crowded or present_ns < _BEYOND * common_ns:
            return False
        return present_ns - common_ns >= _EXPLAINED * self.excess_ns

    def take(self, step: StepSummary, waits: Iterable[tuple[int, int]] = ()) -> None:
        """Add an optimizer step; waits of one step may fall into the wall time of the next one.

        `waits` are the times, from and until in Unix time, in which the rank waited for operations.
        """
        # A step without details has waited in the next forward, where most gradients are late.
        detailed = step.detailed
        in_forward_ns = sum(step.group_forward_exposed_ns) if detailed else step.exposed_ns
        in_backward_ns = sum(step.group_backward_exposed_ns)
        late_in_step_ns = max(0, sum(step.group_late_ns) - in_forward_ns)
        in_step_ns = max(0, sum(step.group_step_exposed_ns) - late_in_step_ns)
        passes_ns = step.forward_ns + step.backward_ns
        compute_ns = passes_ns - self._late_in_forward_ns - in_backward_ns
        pause_ns = step.wall_ns - passes_ns - in_step_ns - self._late_in_step_ns
        passes_from_ns, began_ns = step.time_ns - passes_ns, step.time_ns - step.wall_ns
        waited = sorted(waits)
        known_ns = self._late_in_forward_ns + in_backward_ns
        compute_ns -= max(0, _covered(waited, passes_from_ns, step.time_ns) - known_ns)
        known_ns = self._late_in_step_ns + in_step_ns
        pause_ns -= max(0, _covered(waited, began_ns, passes_from_ns) - known_ns)
        self._late_in_forward_ns, self._late_in_step_ns = in_forward_ns, late_in_step_ns
        if passes_ns:
            own_ns = max(0, compute_ns), max(0, pause_ns)
            self._take(began_ns, *own_ns, step.run_ns, step.run_delay_ns)

    def take_cycle(self, began_ns: int, own_ns: int) -> None:
        """Add a step that is known by the rank's collectives alone.

        The step's own time, in nanoseconds, counts as computation: pauses cannot be told from it.
        """
        self._take(began_ns, own_ns, 0, None, None)

    def take_pipeline_step(self, step: PipelineStep) -> None:
        """Add a step of a pipeline."""
        self._staged = True
        pause_ns = 0 if self._ended_ns is None else max(0, step.time_ns - self._ended_ns)
        self._ended_ns = step.time_ns + step.wall_ns
        self._take(step.time_ns, step.computing_ns, pause_ns, step.run_ns, step.run_delay_ns)

    def _take(
        self,
        began_ns: int,
        compute_ns: int,
        pause_ns: int,
        run_ns: int | None,
        delay_ns: int | None,
    ) -> None:
        self._began_ns.append(began_ns)
        usual_step_ns = self._step.middle
        self.compute.take(began_ns, compute_ns, usual_step_ns)
        self.pause.take(began_ns, pause_ns, usual_step_ns)
        calm = self.compute.cusum.calm and self.pause.cusum.calm
        self.waits.take(run_ns, delay_ns, calm=calm)
        if calm:
            self._step.add(compute_ns + pause_ns)


def _covered(spans: list[tuple[int, int]], from_ns: int, until_ns: int) -> int:
    """Return the time within [from_ns, until_ns] that at least one of the sorted spans covers."""
    covered_ns, reached_ns = 0, from_ns
    for start_ns, end_ns in spans:
        if start_ns >= until_ns:
            break
        if end_ns > reached_ns:
            reached_ns, before_ns = min(end_ns, until_ns), max(start_ns, reached_ns)
            covered_ns += reached_ns - before_ns
    return covered_ns


def _baseline() -> Baseline:
    """Return the baseline of a duration that is read once in a step."""
    return Baseline(least=_LEARN_STEPS, memory=_MEMORY, every=_EVERY, noise_factor=_NOISE_FACTOR)
