"""The choice of each rank's share (the part that it reduces) in the plan "mesh", by ports' rates.

port_rates    the rate of each rank's port, from the bytes and busy times of its links
rebalance     (state, rates) -> (state, reason): new shares if they save enough time
observe       (state, traffic) -> (state, reason): both steps, once there was enough traffic

Every rank makes the same decisions, since it has the figures of all ranks and no clock is involved.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from slackline.plan.collective._shares import WHOLE, equal_shares, port_time, shares
from slackline.units import show_byte_rate, show_percent, show_time

__all__ = ["Balance", "Traffic", "observe", "port_rates", "rebalance", "round_pace"]

_SECOND_NS = 10**9
_LEAST_BUSY_NS = 5_000_000
"""The shortest busy time that gives a link's rate. The engine samples links every 5 ms."""
_GAIN, _FIRST_GAIN = 1.05, 1.1
"""The factors by which an all_reduce must be faster with new shares than with the present shares,
in two consecutive rounds; the second one if the present shares are equal.

Rates of even ports are measured with an error of a few percent, and of a tenth if the ranks share
busy processors. Uneven shares of even ports would make each other look right, since a port carries
less with a smaller share.
"""
_UNEVEN = Fraction(11, 10)
"""The factor by which the fastest port must seem faster than the slowest port, in two consecutive
rounds, before a plan other than "mesh" is replaced.

In a ring every link waits for the slowest port, so that a fast port seems little faster than a slow
port. Even ports seem to differ by a factor of at most 1.05 in the median round.
"""
_TRIAL_ROUNDS = 64
"""The number of rounds without a change after which larger shares for a slow port are tried.

A port with a small share keeps its links only as busy as the other ends of the links do, even if
the port could carry more. Its traffic therefore does not show that the port has recovered.
"""
_TRIAL_RATE = Fraction(11, 10)
"""The factor by which a trial raises the rate of the port with the smallest share.

A port that is still slow then delays the slices (parts of all_reduces) of the trial by a tenth at
most.
"""
_STALE_ROUNDS = 3
"""The number of rounds of measurement, after a decision, in which the traffic is ignored.

A decision after slice k holds from slice k + 3 on. Rounds of the slices k + 1 and k + 2 have only
traffic by the earlier shares, and the round of slice k + 3 has some.
"""
_CHECK_ROUNDS = 2
"""The number of rounds that show whether new shares have made all_reduces faster."""
_KEPT_GAIN = Fraction(98, 100)
"""The part of the earlier time that an all_reduce with new shares may take at most.

Otherwise the ports were not the reason for the measured rates, but, for example, busy processors.
"""
_REST_ROUNDS = 16
"""The number of rounds without a change after shares that made nothing faster."""
_NUMBERS = 15
"""The largest number by which a frame's header refers to a set of shares; the next number is 1."""


class Traffic(NamedTuple):
    """The traffic from one rank to another over their link, during one operation."""

    nbytes: int
    busy_ns: int
    """The time during which some bytes of the link were not confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The shares used by a series of all_reduces, and the evidence for a change of shares."""

    weights: tuple[int, ...] | None = None
    """The weights of the ranks' shares in a mesh; None for the plan that was chosen by its cost."""
    mesh: bool
    """Whether the plan chosen by its cost is a mesh with equal shares."""
    number: int = 0
    """The number of changes of the shares, from 0 to 15; after 15 the count goes on with 1."""
    last: tuple[int, ...] | None = None
    """The rates of the ports in the previous round of measurement; None if unknown."""
    rounds: int = 0
    """The number of rounds with known rates since the last change of the shares."""
    stale: int = 0
    """The number of coming rounds in which the traffic is ignored."""
    pending: tuple[tuple[Traffic, ...], ...] | None = None
    """The traffic since the last round that was judged; None if there was none."""
    pace: int | None = None
    """The time of the previous round for each byte of the tensors, in picoseconds, if known."""
    earlier_pace: int | None = None
    """The mean pace before the last change, while it is open whether the change was a gain."""
    paces: tuple[int, ...] = ()
    """The paces of the rounds since the change that is being checked."""
    rest: int = 0
    """The number of coming rounds without a change, after a change that was no gain."""


def port_rates(traffic: Sequence[Sequence[Traffic]]) -> tuple[int, ...] | None:
    """Return the rate of each rank's port in bytes per second, the lower of its two directions.

    `traffic[i][j]` is the traffic from rank i to rank j. A port that is the bottleneck keeps all
    its links busy. Any other port keeps only those links busy whose other end is slower. The rate
    of a direction is therefore the bytes of all its links, divided by the mean of their busy times,
    weighted by their bytes. Links whose other end is slower by this measure are then left out of
    the mean. For a port that is no bottleneck the result is an estimate, which improves with more
    traffic. Returns None if some port had too little traffic.
    """
    ranks = range(len(traffic))
    outward = [[*row[:i], *row[i + 1 :]] for i, row in enumerate(traffic)]
    inward = [[*row[:i], *row[i + 1 :]] for i, row in enumerate(zip(*traffic, strict=True))]
    sending = [_rate(links, links) for links in outward]
    receiving = [_rate(links, links) for links in inward]
    if 0 in sending or 0 in receiving:
        return None
    if min(receiving) * 10 >= max(sending) * 9 and min(sending) * 10 >= max(receiving) * 9:
        return tuple(map(min, sending, receiving))  # no link would be left out
    rates = []
    for i in ranks:
        freely = [traffic[i][j] for j in ranks if j != i and receiving[j] * 10 >= sending[i] * 9]
        sent = _rate(outward[i], freely) or sending[i]
        freely = [traffic[j][i] for j in ranks if j != i and sending[j] * 10 >= receiving[i] * 9]
        rates.append(min(sent, _rate(inward[i], freely) or receiving[i]))
    return tuple(rates)


def round_pace(traffic: Sequence[Sequence[Traffic]]) -> int | None:
    """Return the time of a round for each byte of the reduced tensors, in picoseconds.

    In every plan with shares, all ranks together send each byte of a tensor 2 (n - 1) times. The
    busiest link shows the length of the round, without pauses between operations. None if there was
    no traffic.
    """
    sent = sum([nbytes for row in traffic for nbytes, _ in row])
    busy_ns = max([busy_ns for row in traffic for _, busy_ns in row])
    return None if sent == 0 else busy_ns * 1000 * 2 * (len(traffic) - 1) // sent


def rebalance(
    balance: Balance, rates: tuple[int, ...] | None, pace: int | None = None
) -> tuple[Balance, str | None]:
    """Return the state after a measurement of the ports' rates, and the reason for new shares.

    A rank's share is the part of each all_reduce's buffer that this rank sums. `pace` is the time
    of the round for each byte of the tensors; see `round_pace`.

    The reason is None if the shares stay. With new shares an all_reduce must be faster by a
    twentieth at least, in place of equal shares by a tenth, both at the rates of this round and at
    the rates of the previous round. Any
    other plan is first replaced by "mesh" with equal shares, also if the fastest port seems a tenth
    faster than the slowest: if each rank uses a single link, its figures cannot tell which end of
    the link is slow. Now and then the rank with the smallest share
    gets a larger share on trial; if the trial is slower, the next rounds take the change back. If
    all_reduces do not become faster with new shares, the shares are equal again.
    """
    if rates is None:
        return balance, None
    last, last_pace = balance.last, balance.pace
    known = replace(balance, last=rates, pace=pace, rounds=balance.rounds + 1)
    equal = equal_shares(len(rates))
    if balance.rest:
        return replace(known, rest=balance.rest - 1), None
    if balance.earlier_pace is not None and pace is not None:
        return _check(known, balance.earlier_pace, (*balance.paces, pace), equal)
    if last is None:
        return known, None
    now = balance.weights or equal
    if now == equal and min(max(each) / min(each) for each in (last, rates)) < _FIRST_GAIN:
        return known, None  # shares save at most the factor between the fastest and slowest port
    mean = [(a + b) // 2 for a, b in zip(last, rates, strict=True)]
    chosen = shares(mean)
    gain = min(port_time(each, now) / port_time(each, chosen) for each in (last, rates))
    least = _FIRST_GAIN if now == equal else _GAIN
    promised = False
    uneven = gain >= least or all(max(each) >= _UNEVEN * min(each) for each in (last, rates))
    if uneven and not balance.mesh and balance.weights is None:
        chosen = equal
        reason = (
            "the plan is mesh with equal shares from now on, since the ports seem uneven: "
            + _rates(rates)
        )
    elif gain >= least:
        promised = pace is not None and last_pace is not None
        reason = (
            f"the shares are {_percents(chosen)}, since the ports carry {_rates(rates)}: "
            f"{float(1 - 1 / gain):.0%} less time than with {_percents(now)}"
        )
    elif known.rounds >= _TRIAL_ROUNDS and max(now) > min(now) + 1:
        smallest = now.index(min(now))
        mean[smallest] = int(mean[smallest] * _TRIAL_RATE)
        chosen = shares(mean)
        if chosen == now:
            return replace(known, rounds=0), None
        reason = (
            f"the shares are {_percents(chosen)}, to try whether the port of rank {smallest} can "
            f"carry more than {_rates(rates[smallest : smallest + 1])}"
        )
    else:
        return known, None
    changed = _change(known, chosen)
    if promised and pace is not None and last_pace is not None:
        changed = replace(changed, earlier_pace=(pace + last_pace) // 2)
    return changed, reason


def _change(balance: Balance, chosen: tuple[int, ...]) -> Balance:
    """Return the state with new shares, before any of their traffic."""
    return replace(
        balance,
        weights=chosen,
        number=balance.number % _NUMBERS + 1,
        last=None,
        pace=None,
        earlier_pace=None,
        paces=(),
        rounds=0,
        stale=_STALE_ROUNDS,
    )


def _check(
    balance: Balance, earlier: int, paces: tuple[int, ...], equal: tuple[int, ...]
) -> tuple[Balance, str | None]:
    """Return the state after one more round with new shares, and the reason for equal shares."""
    if len(paces) < _CHECK_ROUNDS:
        return replace(balance, paces=paces), None
    checked = replace(balance, earlier_pace=None, paces=())
    if sum(paces) <= _KEPT_GAIN * earlier * len(paces) or balance.weights in (None, equal):
        return checked, None
    reason = (
        f"the shares are equal again, since all_reduces took {_pace(sum(paces) // len(paces))} "
        f"with {_percents(balance.weights)} and {_pace(earlier)} before"
    )
    return replace(_change(checked, equal), rest=_REST_ROUNDS), reason


def observe(
    balance: Balance, traffic: Sequence[Sequence[Traffic]], least_bytes: int
) -> tuple[Balance, str | None]:
    """Return the state after a slice with this traffic, and the reason for new shares or None.

    Slices often end together, so the traffic between the ends of two slices may cover only a
    moment. Traffic is therefore added up until every port has sent and received `least_bytes`.
    """
    if balance.stale:
        return replace(balance, stale=balance.stale - 1), None
    whole = tuple(map(tuple, traffic))
    if balance.pending is not None:
        whole = tuple(
            tuple(map(_sum, row, more)) for row, more in zip(balance.pending, whole, strict=True)
        )
    carried = [sum([nbytes for nbytes, _ in row]) for row in (*whole, *zip(*whole, strict=True))]
    if min(carried) < least_bytes:
        return replace(balance, pending=whole), None
    if balance.pending is not None:
        balance = replace(balance, pending=None)
    return rebalance(balance, port_rates(whole), round_pace(whole))


def _sum(one: Traffic, other: Traffic) -> Traffic:
    return Traffic(nbytes=one.nbytes + other.nbytes, busy_ns=one.busy_ns + other.busy_ns)


def _rate(links: Sequence[Traffic], judged: Sequence[Traffic]) -> int:
    """Return the rate of one direction of a port in bytes per second; 0 if unknown.

    The rate is the bytes of `links` over the mean busy time of the links in `judged`.
    """
    weight = sum([nbytes for nbytes, _ in judged])
    weighted = sum([nbytes * busy_ns for nbytes, busy_ns in judged])
    if weight == 0 or weighted < weight * _LEAST_BUSY_NS:
        return 0
    carried = weight if links is judged else sum([nbytes for nbytes, _ in links])
    return max(1, carried * weight * _SECOND_NS // weighted)


def _percents(weights: Sequence[int]) -> str:
    return ", ".join(show_percent(weight / WHOLE) for weight in weights)


def _pace(picoseconds: int) -> str:
    return f"{show_time(1000 * picoseconds)} a megabyte"


def _rates(rates: Sequence[int]) -> str:
    return ", ".join(show_byte_rate(rate) for rate in rates)
