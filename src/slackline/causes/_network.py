"""Links, NICs and switches that explain the disturbed links of a job.

    0-1  0-2  0-3  1-2  1-3  2-3     links in use between four hosts over one rail
     x    x    x    x    x    x      the switch
          x         x         x      NIC of host 2
                    x               link 1-2

The explanation with the fewest parts is taken: first the switch, then NICs, then links. Links
without a verdict whose round trips have grown with those of the slow links count for the switch.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from slackline.causes._cause import Cause, Kind
from slackline.causes._hosts import Direction, Layout
from slackline.causes._round_trips import RoundTrips
from slackline.detect import Episode
from slackline.units import count, show_time

__all__ = ["explain"]

_LEAST_PAIRS = 2
"""The number of links of a host that must be disturbed before its NIC is named."""

_LEAST_HOSTS = 3
"""The number of hosts from which on a NIC or a switch can be told from a link."""

_ONE_END_NS = 4_000_000_000
"""The time for which a rail that only one end reports as silent is no evidence: both ends of a
broken rail report it, and a rank that has died is found within this time."""


_Open = Mapping[Direction, Episode]
_Pair = tuple[int, int]


def explain(
    episodes: Iterable[Episode],
    plan: Layout,
    now_ns: int,
    gone: Collection[int] = (),
    *,
    trips: RoundTrips,
) -> list[Cause]:
    """Return the causes that explain the `episodes` that are open at the Unix time `now_ns`.

    Links of the ranks in `gone` have no cause. A host whose links have a longer latency in one
    direction only is a cause of the kind HOST. Longer latencies have no cause until all links in
    use have reported their round trips, nor on rails that take over the traffic of broken ones.
    """
    known = plan.host_of.keys() - set(gone)
    disturbed = {
        (each.source, each.target, each.rail): each
        for each in episodes
        if {each.source, each.target} <= known
    }
    disturbed = {
        key: each for key, each in disturbed.items() if _certain(key, each, disturbed, now_ns)
    }
    if not disturbed:
        return []
    used = {key for key in plan.used | disturbed.keys() if {key[0], key[1]} <= known}
    rails = sorted({rail for _, _, rail in used})
    causes: list[Cause] = []
    left: dict[Direction, Episode] = {}
    for rail in rails:
        found, rest = _of_rail(
            {key: each for key, each in disturbed.items() if key[2] == rail},
            _pairs((key for key in used if key[2] == rail), plan),
            plan,
            trips,
            several=len(rails) > 1,
        )
        causes += found
        left |= rest
    broken_ns = {
        rail: min(each.began_ns for key, each in disturbed.items() if key[2] == rail)
        for rail in {key[2] for key, each in disturbed.items() if each.condition.broken}
    }
    left = {key: each for key, each in left.items() if not _displaced(key[2], each, broken_ns)}
    if len(rails) > 1 and [cause.kind for cause in causes] == [Kind.SWITCH] * len(rails):
        causes = [_switch(disturbed, plan, several=False)]
    return _without_repetition(causes) + _links(left, used)


def _displaced(rail: int, each: Episode, broken_ns: Mapping[int, int]) -> bool:
    """Return whether a longer latency began after another rail broke, whose traffic has moved."""
    others = [since_ns for number, since_ns in broken_ns.items() if number != rail]
    return each.over_ns > 0 and any(each.began_ns >= since_ns for since_ns in others)


def _certain(key: Direction, each: Episode, disturbed: _Open, now_ns: int) -> bool:
    """Return whether an episode is evidence: a broken rail must be reported by both ends."""
    if not each.condition.broken or now_ns - each.heard_ns >= _ONE_END_NS:
        return True
    back = disturbed.get((key[1], key[0], key[2]))
    return back is not None and back.condition.broken


def _pairs(used: Iterable[Direction], plan: Layout) -> dict[_Pair, set[_Pair]]:
    """Return the pairs of hosts with links in use, and the pairs of ranks of these links."""
    found: dict[_Pair, set[_Pair]] = {}
    for source, target, _ in used:
        ends = plan.host_of[source], plan.host_of[target]
        found.setdefault(_ends(*ends), set()).add(_ends(source, target))
    return found


def _of_rail(
    disturbed: _Open,
    pairs: Mapping[_Pair, set[_Pair]],
    plan: Layout,
    trips: RoundTrips,
    *,
    several: bool,
) -> tuple[list[Cause], dict[Direction, Episode]]:
    """Return switch, NICs and late hosts of one rail, and the disturbances that they leave over."""
    cut_off, disturbed, pairs = _cut_off(disturbed, pairs, plan)
    if cut_off and not disturbed:
        return cut_off, {}
    ill = _ranks(disturbed)
    disturbed_pairs = {pair for pair, links in pairs.items() if links <= ill}
    hosts = {host for pair in pairs for host in pair}
    # Traffic leaves a rail on which one NIC is down: then all links in use are those of the NIC.
    star = bool(pairs) and bool(set.intersection(*(set(pair) for pair in pairs)))
    many = len(hosts) >= _LEAST_HOSTS and len(pairs) >= _LEAST_HOSTS
    slow = [each for each in disturbed.values() if each.over_ns]
    if many and not star and (slow or disturbed_pairs == set(pairs)):
        calm = [ends for pair in pairs.keys() - disturbed_pairs for ends in pairs[pair] - ill]
        grown = _grown(calm, disturbed, slow, trips)
        if grown and len(disturbed_pairs) >= _LEAST_PAIRS:
            switch = _switch(disturbed, plan, several=several, calm=len(calm))
            return [*cut_off, switch], {}
        if grown is None:
            disturbed = {key: each for key, each in disturbed.items() if not each.over_ns}
            disturbed_pairs = {pair for pair in disturbed_pairs if pairs[pair] <= _ranks(disturbed)}
    causes, left = cut_off, dict(disturbed)
    for host in sorted(hosts):
        own = {pair for pair in pairs if host in pair}
        if len(own) < _LEAST_PAIRS or not own <= disturbed_pairs:
            continue
        mine = {key: each for key, each in left.items() if host in _places(key, plan)}
        if not mine:
            continue
        into = {plan.host_of[key[1]] == host for key in mine}
        if len(into) == 1 and all(each.over_ns for each in mine.values()):
            causes.append(_late_host(mine, host, plan, into=into.pop()))
        else:
            causes.append(_nic(mine, host, plan))
        left = {key: each for key, each in left.items() if key not in mine}
    return causes, left


def _cut_off(
    disturbed: _Open, pairs: Mapping[_Pair, set[_Pair]], plan: Layout
) -> tuple[list[Cause], _Open, Mapping[_Pair, set[_Pair]]]:
    """Return the NICs of hosts from and to which nothing arrives, and what they leave over.

    The second and the third value are the disturbed directions and the pairs of hosts without
    those of the NICs. What is slow elsewhere has another cause. If nothing arrives anywhere, or
    nothing is slow elsewhere, no NIC is told apart here.
    """
    broken = _ranks(key for key, each in disturbed.items() if each.condition.broken)
    broken_pairs = {pair for pair, links in pairs.items() if links <= broken}
    slow_pairs = {pair for pair, links in pairs.items() if links <= _ranks(disturbed)}
    causes: list[Cause] = []
    if not broken_pairs or broken_pairs == slow_pairs:
        return causes, disturbed, pairs
    for host in sorted({host for pair in broken_pairs for host in pair}):
        own = {pair for pair in pairs if host in pair}
        if len(own) < _LEAST_PAIRS or not own <= broken_pairs:
            continue
        mine = {key: each for key, each in disturbed.items() if host in _places(key, plan)}
        causes.append(_nic(mine, host, plan))
        disturbed = {key: each for key, each in disturbed.items() if key not in mine}
        pairs = {pair: links for pair, links in pairs.items() if pair not in own}
    return causes, disturbed, pairs


def _grown(
    calm: Iterable[_Pair], disturbed: _Open, slow: Sequence[Episode], trips: RoundTrips
) -> bool | None:
    """Return whether the round trips of all undisturbed links have grown; None while unknown."""
    if not slow:
        return not calm
    rail = next(iter(disturbed))[2]
    since_ns = min(each.began_ns for each in slow)
    over_ns = sorted(each.over_ns for each in slow)[len(slow) // 2]
    known = True
    for ends in calm:
        grown = trips.grown(*ends, rail, since_ns, over_ns)
        if grown is False:
            return False
        known &= grown is not None
    return True if known else None


def _ranks(disturbed: Iterable[Direction]) -> set[_Pair]:
    return {_ends(source, target) for source, target, _ in disturbed}


def _switch(disturbed: _Open, plan: Layout, *, several: bool, calm: int = 0) -> Cause:
    rail = next(iter(disturbed))[2]
    hosts = len({host for key in disturbed for host in _places(key, plan)})
    name = f"the switch of rail {rail}" if several else "the switch"
    links = len(_ranks(disturbed))
    reason = (
        f"all {count(links, 'link')} in use between {count(hosts, 'host')} are "
        f"{_conditions(disturbed)}"
    )
    if calm:
        reason = (
            f"{links} links in use are {_conditions(disturbed)}, and the round trips of the other "
            f"{calm} have grown too"
        )
    return _cause(
        Kind.SWITCH,
        name,
        disturbed,
        reason,
        rail=rail if several else None,
    )


def _nic(mine: _Open, host: int, plan: Layout) -> Cause:
    rail = next(iter(mine))[2]
    links = len(_ranks(mine))
    return _cause(
        Kind.NIC,
        f"NIC {rail} of {plan.names[host]}",
        mine,
        f"all {links} links in use over it are {_conditions(mine)}, and links between other hosts "
        "are not",
        rail=rail,
        ranks=plan.hosts[host],
    )


def _late_host(mine: _Open, host: int, plan: Layout, *, into: bool) -> Cause:
    over_ns = sorted(each.over_ns for each in mine.values())
    way, verb = ("into", "answers") if into else ("out of", "sends")
    return _cause(
        Kind.HOST,
        plan.names[host],
        mine,
        f"it {verb} late, {show_time(over_ns[len(over_ns) // 2])} more than usual on all "
        f"{len(mine)} links in use {way} it and on no other link",
        ranks=plan.hosts[host],
    )


def _links(left: _Open, used: Collection[Direction]) -> list[Cause]:
    """Return a cause for each link; both directions and all rails of a link are one cause."""
    by_pair: dict[_Pair, dict[Direction, Episode]] = {}
    for key, each in left.items():
        by_pair.setdefault(_ends(key[0], key[1]), {})[key] = each
    causes = []
    for (low, high), mine in by_pair.items():
        rails = {key[2] for key in mine}
        all_rails = {key[2] for key in used if _ends(key[0], key[1]) == (low, high)}
        directions = {key[:2] for key in mine}
        name = (
            f"link {low}-{high}" if len(directions) == 2 else "link {}>{}".format(*min(directions))
        )
        rail = min(rails) if len(rails) == 1 and rails != all_rails else None
        if rail is not None:
            name += f" on rail {rail}"
        others = len({_ends(key[0], key[1]) for key in used}) - len(by_pair)
        reason = f"it is {_conditions(mine)}"
        reason += f", and the other {others} links in use are not" if others > 1 else ""
        causes.append(_cause(Kind.LINK, name, mine, reason, rail=rail))
    return causes


def _cause(
    kind: Kind,
    name: str,
    mine: _Open,
    reason: str,
    *,
    rail: int | None = None,
    ranks: tuple[int, ...] | None = None,
) -> Cause:
    involved = tuple(sorted({rank for key in mine for rank in key[:2]}))
    return Cause(
        kind=kind,
        name=name,
        ranks=involved if ranks is None else ranks,
        rail=rail,
        since_ns=min(each.began_ns for each in mine.values()),
        links=frozenset(mine),
        sentence=f"{name}: {reason}",
    )


def _without_repetition(causes: list[Cause]) -> list[Cause]:
    """Return the causes with each name once: a late host is late on all of its rails."""
    return list({(cause.kind, cause.name): cause for cause in reversed(causes)}.values())[::-1]


def _conditions(mine: _Open) -> str:
    """Return the conditions of the links in words: "slow", or "silent or slow"."""
    return " or ".join(sorted({str(each.condition) for each in mine.values()}))


def _places(key: Direction, plan: Layout) -> tuple[int, int]:
    return plan.host_of[key[0]], plan.host_of[key[1]]


def _ends(one: int, other: int) -> _Pair:
    return min(one, other), max(one, other)
