"""Slow hosts, slow ranks and slow data loaders, from the pace of all ranks."""

import statistics
from collections.abc import Collection, Mapping

from slackline.causes._cause import Cause, Kind
from slackline.causes._hosts import Layout
from slackline.causes._pace import Pace, Quantity
from slackline.units import show_time

__all__ = ["changed_together", "slow_ranks"]


def changed_together(paces: Mapping[int, Pace], of: Collection[Quantity]) -> bool:
    """Return whether more than half of all ranks, and more than one, changed in a quantity.

    Such a change, for example a longer batch, is a change of the job and not of a rank. `of` has
    the quantity of each rank.
    """
    changed = sum(quantity.cusum.active for quantity in of)
    return changed > 1 and 2 * changed > len(paces)


def slow_ranks(
    paces: Mapping[int, Pace], plan: Layout, late_ranks: Collection[int] = ()
) -> list[Cause]:
    """Return the hosts, ranks and loaders that are slow; `late_ranks` answer late on all links.

    A rank whose waits for a core explain its longer steps has a slow host. If ranks of other hosts
    wait as long, as on the hosts of a lab that share their cores, no cause is named.
    """
    causes = []
    crowded = {rank for rank, pace in paces.items() if pace.crowded}
    computing = {rank for rank, pace in paces.items() if pace.compute.cusum.active}
    together = changed_together(paces, [pace.compute for pace in paces.values()])
    for host, members in enumerate(plan.hosts):
        waiting = [rank for rank in members if rank in crowded]
        if waiting:
            common_ns = _common_wait_ns(members, paces)
            waiting = [rank for rank in waiting if paces[rank].crowded_beyond(common_ns)]
        slow = [rank for rank in members if rank in computing - crowded]
        whole = len(members) > 1 and len(slow) == len(members) and len(plan.hosts) > 1
        late = [rank for rank in slow if rank in late_ranks]
        if waiting:
            causes.append(_host(plan, host, waiting, paces, _waits(waiting, paces)))
        elif together or not slow:
            continue
        elif whole:
            reason = f"all of its {len(members)} ranks compute longer, and those of others do not"
            causes.append(_host(plan, host, slow, paces, reason))
        elif late:
            reason = f"{_numbers(late)} answers late and computes {_longer(late[0], paces)}"
            causes.append(_host(plan, host, slow, paces, reason))
        else:
            causes += [_rank(rank, paces) for rank in slow]
    stalling = [rank for rank, pace in paces.items() if pace.pause.cusum.active]
    if not changed_together(paces, [pace.pause for pace in paces.values()]):
        busy = computing | crowded
        causes += [_loader(rank, paces[rank]) for rank in stalling if rank not in busy]
    return causes


def _common_wait_ns(members: Collection[int], paces: Mapping[int, Pace]) -> float:
    """Return the median of the present waits for a core of all ranks but `members`; 0 without any.

    Ranks whose waits are not known are left out.
    """
    waits = [pace.waits.present_ns for rank, pace in paces.items() if rank not in members]
    known = [wait_ns for wait_ns in waits if wait_ns is not None]
    return statistics.median(known) if known else 0.0


def _host(
    plan: Layout, host: int, slow: list[int], paces: Mapping[int, Pace], reason: str
) -> Cause:
    name = plan.names[host]
    return Cause(
        kind=Kind.HOST,
        name=name,
        ranks=plan.hosts[host],
        since_ns=min(paces[rank].since_ns for rank in slow),
        sentence=f"{name}: its cores are slow or taken: {reason}",
    )


def _rank(rank: int, paces: Mapping[int, Pace]) -> Cause:
    return Cause(
        kind=Kind.RANK,
        name=f"rank {rank}",
        ranks=(rank,),
        since_ns=paces[rank].compute.cusum.since_ns,
        sentence=f"rank {rank}: {_slower(rank, paces)}",
    )


def _slower(rank: int, paces: Mapping[int, Pace]) -> str:
    if paces[rank].recorded:
        return f"it computes {_longer(rank, paces)}; most other ranks compute as usual"
    return f"it posts its collectives late: it takes {_longer(rank, paces)} outside of them"


def _loader(rank: int, pace: Pace) -> Cause:
    pause = pace.pause
    return Cause(
        kind=Kind.LOADER,
        name=f"the data loader of rank {rank}",
        ranks=(rank,),
        since_ns=pause.cusum.since_ns,
        sentence=(
            f"the data loader of rank {rank}: {show_time(pause.excess_ns)} more between two steps "
            f"than "
            f"the usual {show_time(pause.usual_ns)}, while the rank computes as usual"
        ),
    )


def _waits(waiting: list[int], paces: Mapping[int, Pace]) -> str:
    rank = waiting[0]
    pace = paces[rank]
    took = f"computes {_longer(rank, paces)}"
    if not pace.compute.cusum.active:
        took = f"takes {show_time(pace.pause.excess_ns)} more between two steps than usual"
    return f"{_numbers(waiting)} {took} and waits {show_time(pace.waits.excess_ns)} more for a core"


def _longer(rank: int, paces: Mapping[int, Pace]) -> str:
    compute = paces[rank].compute
    return (
        f"{show_time(compute.excess_ns)} a step longer than its usual {show_time(compute.usual_ns)}"
    )


def _numbers(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"each of ranks {', '.join(map(str, ranks))}"
