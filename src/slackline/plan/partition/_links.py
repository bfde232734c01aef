"""The time of a plan over links that carry one message at a time in each direction.

A scenario's delay is the same for each message. On a link with a rate, a message whose predecessor
is still leaving waits:

    left(m)    = max(end of the computation of m, left(m - 1)) + busy
    arrival(m) = left(m) + latency
"""

from collections import deque
from collections.abc import Sequence

from slackline.plan.pipeline import Kind, PipelinePlan, Scenario, duration_ps

__all__ = ["linked_ps"]


def linked_ps(plan: PipelinePlan, scenario: Scenario, busy_ps: Sequence[int]) -> int:
    """Return the makespan of a plan with one stage on each rank.

    `busy_ps[i]` is the time for which a message occupies link i; the delays of the scenario include
    it. The plan must be valid and have the microbatches of each kind in order.
    """
    stages = plan.stages
    activations: list[list[int]] = [[] for _ in range(stages)]
    gradients: list[list[int]] = [[] for _ in range(stages)]
    left = [[0] * stages, [0] * stages]
    now, place = [0] * stages, [0] * stages
    ready = deque(range(stages))
    while ready:
        stage = ready.popleft()
        program = plan.programs[stage]
        while place[stage] < len(program):
            instruction = program[place[stage]]
            backward, microbatch = instruction.kind.backward, instruction.microbatch
            if instruction.kind is not Kind.W:
                awaited = gradients if backward else activations
                if stage != (stages - 1 if backward else 0):
                    if microbatch >= len(awaited[stage]):
                        break
                    now[stage] = max(now[stage], awaited[stage][microbatch])
            now[stage] += duration_ps(instruction, scenario)
            place[stage] += 1
            target = stage - 1 if backward else stage + 1
            if instruction.kind is Kind.W or not 0 <= target < stages:
                continue
            link = min(stage, target)
            delays = scenario.backward_delay_ps if backward else scenario.forward_delay_ps
            channel = left[backward]
            channel[stage] = max(now[stage], channel[stage]) + busy_ps[link]
            arrivals = gradients if backward else activations
            arrivals[target].append(channel[stage] + delays[link] - busy_ps[link])
            ready.append(target)
    return max(now)
