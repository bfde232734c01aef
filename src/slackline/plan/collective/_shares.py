"""The shares of a tensor that the ranks of a mesh own, in proportion to the rates of their ports.

In an all_reduce by the plan "mesh", rank i receives the contributions to its share of the S bytes,
reduces them, and sends the result to the n - 1 other ranks. With the share w_i, between 0 and 1,
the port of rank i carries in each direction

    S (1 - w_i)       its contributions to other ranks' shares, or the results of these shares
    S w_i (n - 1)     the result of its own share, or the contributions to its own share
    ----------------
    S (1 + (n - 2) w_i)

With the rates r_i, no shares can finish before

    T = max(2 (n - 1) S / sum(r), S / min(r))

The first term is the sum of all ports' bytes, n S + (n - 2) S, over the sum of all rates. The
second term is the time of the slowest port without a share.

For n >= 3, let the k fastest ports have shares and be busy for the same time t, so that
w_i = (r_i t / S - 1) / (n - 2). These shares add up to 1 for t = (n - 2 + k) S / sum of the k
rates. If the slowest of the k would get a negative share, r_i t < S, it is left out, and t falls.
With k = n, t is the first term of T. With k < n, t is less than the second term, which the slowest
port takes in any case. T is then reached, and the other ports are idle for a part of that time.
"""

from collections.abc import Sequence
from fractions import Fraction

from slackline.errors import UsageError
from slackline.plan.collective._split import check_weights

__all__ = ["WHOLE", "equal_shares", "port_time", "shares"]

WHOLE = 1 << 16
"""The sum of the weights that `shares` returns: a weight counts 65536ths of the tensor."""


def shares(rates: Sequence[int]) -> tuple[int, ...]:
    """Return the weight of each rank's share with which a mesh all_reduce takes the least time.

    `rates` has the rate of each rank's port in bytes per second, the lower of its two directions.
    The weights add up to `WHOLE`, and equal rates give equal weights where WHOLE is a multiple of
    the number of ranks. With fewer than three ranks each port carries the whole tensor whatever the
    shares, so the shares are equal. Raises UsageError for a rate that is not positive.
    """
    _check_rates(rates)
    ranks = len(rates)
    if ranks < 3:
        return equal_shares(ranks)
    fastest = sorted(rates, reverse=True)
    while (time := Fraction(ranks - 2 + len(fastest), sum(fastest))) * fastest[-1] < 1:
        fastest.pop()
    room = [max(Fraction(0), rate * time - 1) for rate in rates]
    return _rounded([each / (ranks - 2) * WHOLE for each in room])


def equal_shares(ranks: int) -> tuple[int, ...]:
    """Return the weights of equal shares, which add up to `WHOLE`."""
    return _rounded([Fraction(WHOLE, ranks)] * ranks)


def port_time(rates: Sequence[int], weights: Sequence[int]) -> Fraction:
    """Return the time in seconds that the busiest port takes for each byte of the tensor.

    `rates` is in bytes per second; `weights` are the shares of the ranks in any unit. Raises
    UsageError for a wrong rate or weight.
    """
    _check_rates(rates)
    check_weights(weights, len(rates))
    spread = len(rates) - 2
    whole = sum(weights)
    if len(rates) == 1:
        return Fraction(0)
    return max(
        (1 + spread * Fraction(weight, whole)) / rate
        for rate, weight in zip(rates, weights, strict=True)
    )


def _rounded(exact: Sequence[Fraction]) -> tuple[int, ...]:
    """Round to integers with the same sum: round up the numbers with the largest remainders."""
    floors = [int(each) for each in exact]
    missing = int(sum(exact)) - sum(floors)
    by_remainder = sorted(range(len(exact)), key=lambda i: floors[i] - exact[i])
    for i in by_remainder[:missing]:
        floors[i] += 1
    return tuple(floors)


def _check_rates(rates: Sequence[int]) -> None:
    if not rates:
        raise UsageError("rates must have the rate of at least one rank, not be empty")
    for rank, rate in enumerate(rates):
        if rate <= 0:
            raise UsageError(f"the rate of rank {rank} must be positive, not {rate}")
