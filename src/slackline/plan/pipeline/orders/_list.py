"""List scheduling: each stage, whenever it is free, starts an operation whose inputs are there.

The rule prefers a backward for the input (B) to a forward (F) to a backward for the weights (W).
Each kind is taken in microbatch order: microbatches are alike, so no other order of one kind is
better. Parameters (`Knobs`) modify the rule stage by stage, and each setting of them gives one
candidate for `auto`. The code is written for speed, with lists of integers and one event for each
operation, since a plan is chosen among hundreds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush, heapreplace

from slackline.plan.pipeline._instruction import Kind
from slackline.plan.pipeline._scenario import Scenario

__all__ = ["KINDS", "B", "F", "Knobs", "Orders", "W", "Work", "list_schedule"]

F, B, W = 0, 1, 2
KINDS = (Kind.F, Kind.B, Kind.W)
"""The instruction kinds that the codes F = 0, B = 1 and W = 2 stand for."""

Orders = list[bytearray]
"""The operations of each stage in order, as codes (F, B, W = 0, 1, 2)."""

_NEVER = 1 << 200
MANY = 1 << 60
"""A limit so large that it has no effect."""


@dataclass(frozen=True, slots=True)
class Work:
    """A scenario's numbers in the form that the inner loops of the search read."""

    stages: int
    microbatches: int
    times: tuple[tuple[int, int, int], ...]
    """The picoseconds of a forward, a backward for the input and one for the weights, by stage."""
    forward_delays: tuple[int, ...]
    """The delay of the link from each stage to the next; 0 for the last stage."""
    backward_delays: tuple[int, ...]
    """The delay of the link from each stage to the previous one; 0 for the first stage."""
    held: tuple[tuple[int, int, int], ...]
    """The changes of each stage's activation memory by a forward, a B and a W."""
    caps: tuple[int, ...]

    @classmethod
    def of(cls, scenario: Scenario) -> "Work":
        """Return the scenario's numbers in this form."""
        times = zip(
            scenario.forward_ps,
            scenario.backward_input_ps,
            scenario.backward_weight_ps,
            strict=True,
        )
        return cls(
            stages=scenario.stages,
            microbatches=scenario.microbatches,
            times=tuple(times),
            forward_delays=(*scenario.forward_delay_ps, 0),
            backward_delays=(0, *scenario.backward_delay_ps),
            held=tuple(
                (each.activation, -each.freed_at_backward, each.freed_at_backward - each.activation)
                for each in scenario.memory
            ),
            caps=tuple(MANY if each.cap is None else each.cap for each in scenario.memory),
        )

    @property
    def operations(self) -> int:
        """The number of operations of all stages together."""
        return 3 * self.stages * self.microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """Parameters of the list-scheduling rule, one value for each stage."""

    warm_up: tuple[int, ...]
    """The number of forwards before the first backward."""
    in_flight: tuple[int, ...]
    """The largest number of microbatches between forward and backward at once."""
    pending: tuple[int, ...]
    """The number of pending backwards for the weights at which a W goes before a forward."""
    kept: tuple[int, ...]
    """The number of pending backwards for the weights (W) that the stage keeps for the drain.

    The drain is the end of the iteration. While the message for a forward or for a backward for the
    input is in flight, the stage waits instead of starting one of these W's.
    """
    wait_forward_ps: tuple[int, ...]
    """The longest wait for a forward's message, instead of starting a backward for the weights."""
    wait_backward_ps: tuple[int, ...]
    """The longest wait for a backward's message, instead of starting a backward for the weights."""
    yield_backward_ps: tuple[int, ...]
    """The longest wait for a backward's message, instead of starting a forward."""

    @classmethod
    def plain(cls, stages: int) -> "Knobs":
        """Return the unmodified rule: the first ready operation, B before F before W."""
        none, endless = (0,) * stages, (MANY,) * stages
        return cls(
            warm_up=none,
            in_flight=endless,
            pending=endless,
            kept=none,
            wait_forward_ps=none,
            wait_backward_ps=none,
            yield_backward_ps=none,
        )

    @classmethod
    def with_warm_up(cls, forwards: Sequence[int]) -> "Knobs":
        """Return the plain rule, but with `forwards[i]` forwards before all else on stage i."""
        return replace(cls.plain(len(forwards)), warm_up=tuple(forwards))

    @classmethod
    def with_in_flight(cls, quotas: Sequence[int]) -> "Knobs":
        """Return the plain rule, but with at most `quotas[i]` microbatches in flight on stage i."""
        return replace(cls.plain(len(quotas)), in_flight=tuple(quotas))


def list_schedule(work: Work, knobs: Knobs) -> tuple[int, Orders]:
    """Schedule the operations by the rule; return the makespan and the orders of all stages.

    No stage ever exceeds its memory cap, and the schedule never deadlocks. To see the latter,
    suppose that no stage computes and no message travels. Among the microbatches that still lack a
    backward for the weights (W), take the first that lacks a backward for the input (B), and the
    last stage that has done its forward (F). If that stage is the model's last, its B is ready.
    Otherwise the next stage holds activations of earlier microbatches, and then has a W to do; or
    the next stage holds nothing, and then its F fits the cap, as one activation always does.
    """
    count, last = work.microbatches, work.stages - 1
    times, held, caps = work.times, work.held, work.caps
    down, up = work.forward_delays, work.backward_delays
    warm_up, in_flight, pending, kept = knobs.warm_up, knobs.in_flight, knobs.pending, knobs.kept
    wait_f, wait_b = knobs.wait_forward_ps, knobs.wait_backward_ps
    yield_b = knobs.yield_backward_ps
    # The arrival of the m-th message of each kind is known as soon as its sender starts.
    forwards: list[list[int]] = [[] for _ in times]
    backwards: list[list[int]] = [[] for _ in times]
    forwards[0] = [0] * count
    done_f, done_b, done_w = [0] * (last + 1), [0] * (last + 1), [0] * (last + 1)
    used = [0] * (last + 1)
    orders: Orders = [bytearray() for _ in times]
    # `due` has the time of each stage's one valid event: earlier entries of the heap are stale.
    # `until` has the time until which a stage waits for a message, and -1 while it computes.
    due = [_NEVER] * (last + 1)
    until = [_NEVER] * (last + 1)
    due[0] = makespan = 0
    events: list[tuple[int, int]] = [(0, 0)]
    while events:
        now, i = events[0]
        if due[i] != now:
            heappop(events)
            continue
        f, b, w = done_f[i], done_b[i], done_w[i]
        arrived = backwards[i]
        b_at = arrived[b] if b < len(arrived) else _NEVER
        if f < warm_up[i]:
            b_at = _NEVER
        if b_at <= now:
            kind = B
        else:
            f_at = _NEVER
            if f < count and used[i] + held[i][F] <= caps[i] and f - b < in_flight[i]:
                arrived = forwards[i]
                if f < len(arrived):
                    f_at = arrived[f]
            if f_at <= now and b - w < pending[i] and b_at > now + yield_b[i]:
                kind = F
            elif b > w:
                kind = W
                soon = b_at if b_at < f_at else f_at
                if (
                    f_at > now
                    and soon < _NEVER
                    and (b_at < now + wait_b[i] or f_at < now + wait_f[i] or b - w <= kept[i])
                ):
                    kind = -1
            elif f_at <= now and b_at > now + yield_b[i]:
                kind = F
            else:
                kind = -1
                if f_at <= now:
                    f_at = _NEVER
                soon = b_at if b_at < f_at else f_at
            if kind < 0:
                heappop(events)
                due[i] = until[i] = soon
                if soon < _NEVER:
                    heappush(events, (soon, i))
                continue
        end = now + times[i][kind]
        used[i] += held[i][kind]
        orders[i].append(kind)
        due[i] = end
        until[i] = -1
        heapreplace(events, (end, i))
        if end > makespan:
            makespan = end
        if kind == W:
            done_w[i] = w + 1
            continue
        if kind == F:
            done_f[i] = f + 1
            if i == last:
                backwards[i].append(end)
                continue
            to, there = i + 1, end + down[i]
            forwards[to].append(there)
        else:
            done_b[i] = b + 1
            if i == 0:
                continue
            to, there = i - 1, end + up[i]
            backwards[to].append(there)
        if there < until[to]:
            due[to] = until[to] = there
            heappush(events, (there, to))
    return makespan, orders
