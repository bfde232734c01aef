"""Random scenarios from a seed: uneven times, none to several slow links, caps from S to 3 S.

S is the number of stages, and a cap counts activations.
"""

from fractions import Fraction
from random import Random

from slackline.plan.pipeline import Scenario, StageMemory

UNIT_PS = 10**8
"""The unit of all times: multiples of it let the exact solver count in small integers."""


def draw(seed: int, stages: tuple[int, int], microbatches: tuple[int, int]) -> Scenario:
    """Return a scenario with times around 10 ms.

    A third of the scenarios has equal stages, another third almost equal stages.
    """
    random = Random(seed)
    count = random.randint(*stages)
    low, high = random.choice(((100, 100), (80, 120), (30, 200)))
    times = [tuple(random.randint(low, high) * UNIT_PS for _ in range(count)) for _ in range(3)]
    delays = [[0] * (count - 1), [0] * (count - 1)]
    for _ in range(random.choice((0, 1, 1, 2, count - 1)) if count > 1 else 0):
        link, delay = random.randrange(count - 1), random.choice((50, 100, 200, 300, 600))
        for direction in random.choice(((0,), (1,), (0, 1))):
            delays[direction][link] = delay * UNIT_PS
    freed = random.choice((Fraction(0), Fraction(1, 2)))
    memory = StageMemory.of_microbatches(random.randint(count, 3 * count), freed)
    return Scenario(
        microbatches=random.randint(*microbatches),
        forward_ps=times[0],
        backward_input_ps=times[1],
        backward_weight_ps=times[2],
        forward_delay_ps=tuple(delays[0]),
        backward_delay_ps=tuple(delays[1]),
        memory=(memory,) * count,
    )
