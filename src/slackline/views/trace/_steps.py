"""Training steps of slackline.overlap as slices: their phases, and their groups of gradients.

    training     [ training step 7                        ][ training step 8 ...
                 [ step   ][ forward     ][ backward      ]
    gradients                          [ from parameter 12 ]

A step lasts from one call of the optimizer's `step` to the next one. The record has the sums of all
forwards and of all backwards of the step, which are drawn as one forward and one backward.
"""

from collections.abc import Callable, Iterator

from slackline.records import StepSummary
from slackline.views.trace._events import Event, Lanes, Slice, Track, Value

__all__ = ["StepEvents"]


class StepEvents:
    """The slices of all ranks' training steps."""

    def __init__(self, unix_ns: Callable[[int, int], int]) -> None:
        """Convert a rank's Unix time by `unix_ns` to that of the reference clock."""
        self._unix_ns = unix_ns
        self._ends: dict[Track, int] = {}
        self._lanes = Lanes()

    def take(self, step: StepSummary) -> Iterator[Event]:
        """Yield the slices of a step."""
        called_ns = self._unix_ns(step.rank, step.time_ns)
        others = f", optimizer {step.optimizer}" if step.optimizer else ""
        track = Track(step.rank, f"training{others}")
        # The time of a call and the duration come from two clocks, whose readings differ a little.
        previous_ns = self._ends.get(track, called_ns - step.wall_ns)
        end_ns = max(called_ns, previous_ns)
        begin_ns = min(end_ns, max(called_ns - step.wall_ns, previous_ns))
        self._ends[track] = end_ns
        yield _slice(
            track,
            f"training step {step.step}",
            begin_ns,
            end_ns,
            {
                "exposed_ns": step.exposed_ns,
                **({} if step.hidden_ns is None else {"hidden_ns": step.hidden_ns}),
                "optimizer_ns": step.optimizer_ns,
                "reduced_bytes": step.reduced_bytes,
                "parameters": step.parameters,
                "waited": step.waited,
            },
        )
        if step.forward_ns or step.backward_ns:
            backward_ns = max(begin_ns, end_ns - step.backward_ns)
            forward_ns = max(begin_ns, backward_ns - step.forward_ns)
            for name, since_ns, until_ns in (
                ("step", begin_ns, forward_ns),
                ("forward", forward_ns, backward_ns),
                ("backward", backward_ns, end_ns),
            ):
                if since_ns < until_ns:
                    yield _slice(track, name, since_ns, until_ns, {})
        yield from self._gradients(step, called_ns - step.wall_ns, others)

    def _gradients(self, step: StepSummary, began_ns: int, others: str) -> Iterator[Event]:
        """Yield a slice for each group of gradients whose post and end are known."""
        count = len(step.groups)
        columns = (
            step.group_bytes,
            step.group_posted_ns,
            step.group_ended_ns or (0,) * count,
            step.group_exposed_ns,
            step.group_late_ns,
        )
        if any(len(column) != count for column in columns):
            raise ValueError(f"the fields of its {count} groups have other lengths")
        rows = zip(step.groups, *columns, strict=True)
        for first, nbytes, posted_ns, ended_ns, exposed_ns, late_ns in rows:
            if not ended_ns:  # On accelerators, torch does not tell the end of a reduction.
                continue
            begin_ns, end_ns = began_ns + posted_ns, began_ns + max(posted_ns, ended_ns)
            yield Slice(
                track=self._lanes.track(step.rank, f"gradients{others}", begin_ns, end_ns),
                name=f"from parameter {first}",
                category="gradients",
                begin_ns=begin_ns,
                end_ns=end_ns,
                arguments={
                    "bytes": nbytes,
                    "step": step.step,
                    "exposed_ns": exposed_ns,
                    "late_ns": late_ns,
                },
            )


def _slice(
    track: Track, name: str, begin_ns: int, end_ns: int, arguments: dict[str, Value]
) -> Slice:
    return Slice(
        track=track,
        name=name,
        category="training",
        begin_ns=begin_ns,
        end_ns=end_ns,
        arguments=arguments,
    )
