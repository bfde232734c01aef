"""A lower bound on the makespan of a pipeline, which no order can beat.

The bound uses three times of a microbatch that never waits, with c the delays:

    head_i   the time until its F can start on stage i: the sum over j < i of tF_j + c_j
    trip_i   the time from the end of its F on stage i until its B can start there: 0 at the last
             stage, else c_i + tF_{i+1} + trip_{i+1} + tB_{i+1} + c_i
    tail_i   the time from the end of its B on stage i until stages 0 to i have finished it: the
             maximum, over j <= i, of the Bs and delays on the way to stage j, plus tW_j
"""

from collections.abc import Sequence
from dataclasses import dataclass

from slackline.plan.pipeline._scenario import Scenario

__all__ = ["Trips", "lower_bound_ps", "trips"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trips:
    """The head, trip and tail times, for each stage, of a microbatch that never waits."""

    head_ps: tuple[int, ...]
    trip_ps: tuple[int, ...]
    tail_ps: tuple[int, ...]


def trips(scenario: Scenario) -> Trips:
    """Compute the head, trip and tail times of each stage, which the module's docstring defines."""
    forward, backward = scenario.forward_ps, scenario.backward_input_ps
    weight = scenario.backward_weight_ps
    down, up = scenario.forward_delay_ps, scenario.backward_delay_ps
    head, tail, trip = [0], [weight[0]], [0]
    for i in range(1, scenario.stages):
        head.append(head[-1] + forward[i - 1] + down[i - 1])
        tail.append(max(weight[i], up[i - 1] + backward[i - 1] + tail[-1]))
    for i in reversed(range(scenario.stages - 1)):
        trip.append(down[i] + forward[i + 1] + trip[-1] + backward[i + 1] + up[i])
    return Trips(head_ps=tuple(head), trip_ps=tuple(reversed(trip)), tail_ps=tuple(tail))


def lower_bound_ps(scenario: Scenario, placement: Sequence[int] | None = None) -> int:
    """Return a makespan that no order of these stages can beat: the largest of three bounds.

    Work: stage i starts no earlier than head_i and computes all its N (tF + tB + tW). After the end
    of its last B, tail_i is still to come, which may include the stage's own last W:

        head_i + N (tF + tB) + max(N tW, tail_i)

    First trip: the stage's first B ends no earlier than head_i + tF + trip_i + tB. Until then the
    stage has done at most k forwards, the number that its cap admits; the other forwards come
    after:

        head_i + tF + trip_i + tB + (N - k) tF + (N - 1) tB + max(N tW, tail_i)

    Without a cap k is N. The sum may contain all N W's, because no W comes before the first B.

    Memory: an activation occupies memory for at least tF + trip_i + tB, and the part that B does
    not free stays for at least tW more. All N activations need N times this product of memory and
    time. Within a makespan T, stage i offers the product cap (T - head_i). If only whole
    activations up to the end of the last B are counted, the stage offers cap (T - head_i - tail_i).

    With a `placement` of several stages on a rank, links inside the rank take no time, and a rank
    computes the work of all its stages.
    """
    if placement is not None and len(set(placement)) < len(placement):
        return _shared_bound_ps(scenario, placement)
    count = scenario.microbatches
    known = trips(scenario)
    best = 0
    for i, memory in enumerate(scenario.memory):
        forward, backward = scenario.forward_ps[i], scenario.backward_input_ps[i]
        weight = scenario.backward_weight_ps[i]
        head, tail = known.head_ps[i], known.tail_ps[i]
        rest = max(count * weight, tail)
        best = max(best, head + count * (forward + backward) + rest)
        under_way = forward + known.trip_ps[i] + backward
        most = count if memory.cap is None else min(count, memory.cap // memory.activation)
        after = (count - most) * forward + (count - 1) * backward
        best = max(best, head + under_way + after + rest)
        if memory.cap is not None:
            whole = count * memory.activation * under_way
            left = count * (memory.activation - memory.freed_at_backward) * weight
            best = max(best, head + -(-(whole + left) // memory.cap))
            best = max(best, head + tail + -(-whole // memory.cap))
    return best


def _shared_bound_ps(scenario: Scenario, placement: Sequence[int]) -> int:
    known = trips(scenario.placed(placement))
    heads: dict[int, int] = {}
    work: dict[int, int] = {}
    longest = 0
    for stage, rank in enumerate(placement):
        forward, backward = scenario.forward_ps[stage], scenario.backward_input_ps[stage]
        once = forward + known.trip_ps[stage] + backward + known.tail_ps[stage]
        longest = max(longest, known.head_ps[stage] + once)
        heads[rank] = min(heads.get(rank, known.head_ps[stage]), known.head_ps[stage])
        each = forward + backward + scenario.backward_weight_ps[stage]
        work[rank] = work.get(rank, 0) + scenario.microbatches * each
    return max(longest, *(heads[rank] + work[rank] for rank in work))
