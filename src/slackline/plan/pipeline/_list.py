"""List scheduling: each stage, whenever it is free, takes an operation that is ready.

B before F before W, each kind in microbatch order: microbatches are alike, so no other order of one
kind is better. Knobs bend the rule stage by stage; each setting of them is a candidate for `auto`.
Written for speed, since a plan is chosen among hundreds: lists of integers, one event an operation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush, heapreplace

from slackline.plan.pipeline._instruction import Kind
from slackline.plan.pipeline._scenario import Scenario

__all__ = ["B", "F", "KINDS", "Knobs", "Orders", "W", "Work", "list_schedule"]

F, B, W = 0, 1, 2
KINDS = (Kind.F, Kind.B, Kind.W)
"""What the codes stand for."""

Orders = list[bytearray]
"""For each stage its operations as codes."""

_NEVER = 1 << 200
MANY = 1 << 60
"""A limit that never binds."""


@dataclass(frozen=True, slots=True)
class Work:
    """A scenario as the inner loops read it."""

    stages: int
    microbatches: int
    times: tuple[tuple[int, int, int], ...]
    """(tF, tB, tW) of each stage."""
    forward_delays: tuple[int, ...]
    """Over the link below each stage; 0 below the last."""
    backward_delays: tuple[int, ...]
    """Over the link above each stage; 0 above the first."""
    held: tuple[tuple[int, int, int], ...]
    """By how much F, B and W of each stage change what it holds."""
    caps: tuple[int, ...]

    @classmethod
    def of(cls, scenario: Scenario) -> "Work":
        """The scenario's numbers."""
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
        """How many there are in all."""
        return 3 * self.stages * self.microbatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """How the rule is bent, one value for each stage; the defaults leave it plain."""

    warm_up: tuple[int, ...]
    """Forwards before the first B."""
    in_flight: tuple[int, ...]
    """Microbatches between F and B at once, at most."""
    pending: tuple[int, ...]
    """From this many W's on, one goes before a ready F."""
    kept: tuple[int, ...]
    """W's that stay behind, for the drain, as long as something else is on its way."""
    wait_forward_ps: tuple[int, ...]
    """How long an F that is on its way is waited for before a W is started."""
    wait_backward_ps: tuple[int, ...]
    """How long a B that is on its way is waited for before a W is started."""
    yield_backward_ps: tuple[int, ...]
    """How long a B that is on its way is waited for before an F is started."""

    @classmethod
    def plain(cls, stages: int) -> "Knobs":
        """Whatever is ready, B before F before W."""
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
        """Plain, after so many forwards on each stage."""
        return replace(cls.plain(len(forwards)), warm_up=tuple(forwards))

    @classmethod
    def with_in_flight(cls, quotas: Sequence[int]) -> "Knobs":
        """Plain, with at most so many microbatches between F and B on each stage."""
        return replace(cls.plain(len(quotas)), in_flight=tuple(quotas))


def list_schedule(work: Work, knobs: Knobs) -> tuple[int, Orders]:
    """The makespan and the orders. Never over a cap, and never stuck.

    Never stuck: if no stage computes and no message travels, then of the microbatches that are not
    through with W, look at the first that has no B: at the last stage that has done its F, either
    that is the model's last stage, whose B is ready, or the stage below holds earlier microbatches,
    which have W to do, or nothing, and then its F is within the cap, as one activation always is.
    """
    count, last = work.microbatches, work.stages - 1
    times, held, caps = work.times, work.held, work.caps
    down, up = work.forward_delays, work.backward_delays
    warm_up, in_flight, pending, kept = knobs.warm_up, knobs.in_flight, knobs.pending, knobs.kept
    wait_f, wait_b = knobs.wait_forward_ps, knobs.wait_backward_ps
    yield_b = knobs.yield_backward_ps
    # When the m-th message of each kind is there, as far as it is known: from its sender's start.
    forwards: list[list[int]] = [[] for _ in times]
    backwards: list[list[int]] = [[] for _ in times]
    forwards[0] = [0] * count
    done_f, done_b, done_w = [0] * (last + 1), [0] * (last + 1), [0] * (last + 1)
    used = [0] * (last + 1)
    orders: Orders = [bytearray() for _ in times]
    # The event that counts for a stage, and until when it waits: -1 while it computes.
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
