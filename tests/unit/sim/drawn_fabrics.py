"""Plans and fabrics that tests draw at random."""

from random import Random

from slackline.plan.collective import Collective, CollectivePlan, generate
from slackline.sim import Fabric, Framing, Host

US, MS = 10**6, 10**9
"""A microsecond and a millisecond, in picoseconds."""


def drawn_fabric(random: Random, hosts: int) -> Fabric:
    """Return a fabric of `hosts` hosts with one or two NICs each, of rates that differ."""
    nics = random.randint(1, 2)
    return Fabric(
        hosts=tuple(
            Host(
                rates_bps=tuple(random.randint(1, 40) * 10**8 for _ in range(nics)),
                latency_ps=random.choice((0, random.randint(1, 10**7))),
                cores=random.randint(1, 3),
                frame_ps=random.choice((0, random.randint(1, 10**6))),
                reduce_bytes_per_second=random.choice((None, 10**9)),
                memory_bytes_per_second=random.choice((None, 5 * 10**9)),
                memory_latency_ps=random.randint(0, 10**6),
            )
            for _ in range(hosts)
        ),
        framing=random.choice(
            (Framing(), Framing(header_bytes=64, packet_bytes=1448, packet_overhead_bytes=90))
        ),
        forwards_after_bytes=random.choice((0, 1514, None)),
        resend_ps=random.choice((50 * US, MS)),
        seed=random.randint(0, 9),
    )


def made(collective: Collective, name: str, ranks: int) -> CollectivePlan:
    """Return a plan of this kind; the last rank is its root, and two ranks exchange messages."""
    if collective is Collective.POINT_TO_POINT:
        ranks = min(ranks, 2)
    return generate(collective, name, ranks, ranks - 1 if collective.rooted else None)
