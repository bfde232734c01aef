"""Contents that show after any number of calls whether each of them was right.

An all_reduce in place with SUM over n ranks turns the ranks' values x_r into their sum s, and each
further call turns s into n * s. For n a power of two and small integers x_r, all of that is exact:
after k calls each element is s * n**(k-1), and a call that was lost, torn or doubled anywhere
leaves another value, which the calls after it carry on. The start is scaled by 2**(salt - BIAS) so
that 208 calls of two ranks stay within float32's normal numbers:

    1 <= x_r < 2**11, s < 2**12, salt < 4:  2**-126 < 2**-110  and  2**(12 + 3 - 110 + 207) < 2**128

turns.h holds the same arithmetic.
"""

from __future__ import annotations

import torch

BIAS = 110
MODULUS = 2039
"""A prime, so that no power-of-two shift of the buffer maps the pattern onto itself."""


def contribution(rank: int, count: int) -> torch.Tensor:
    """The values of `rank`, integers in 1..MODULUS: (7 * index + 331 * rank) mod MODULUS + 1."""
    period = (torch.arange(MODULUS) * 7 + rank * 331).remainder_(MODULUS).add_(1).float()
    return period.repeat(-(-count // MODULUS))[:count]


def total(size: int, count: int) -> torch.Tensor:
    """The sum of all ranks' contributions."""
    period = sum(contribution(rank, MODULUS) for rank in range(size))
    assert isinstance(period, torch.Tensor)
    return period.repeat(-(-count // MODULUS))[:count]


def fill(buffer: torch.Tensor, contribution: torch.Tensor, salt: int) -> None:
    """Start a turn; `salt` (0 to 3) tells its values from those of the turn before."""
    torch.mul(contribution, 2.0 ** (salt - BIAS), out=buffer)


def check(buffer: torch.Tensor, total: torch.Tensor, size: int, calls: int, salt: int) -> None:
    """Raise ArithmeticError unless `buffer` is what `calls` right calls leave.

    Scales `buffer` back to `total` in place.
    """
    growth = (size.bit_length() - 1) * (calls - 1)
    buffer.mul_(2.0 ** (BIAS - salt - growth))
    if not torch.equal(buffer, total):
        wrong = int((buffer != total).nonzero()[0])
        raise ArithmeticError(
            f"element {wrong} is {buffer[wrong].item()} times its scale "
            f"instead of {total[wrong].item()} after {calls} calls"
        )
