"""Buffer contents that show, after any number of all_reduces, whether each result was right.

An all_reduce in place with SUM over n ranks turns the ranks' values x_r into their sum s, and each
further call turns s into n * s. If n is a power of two and x_r are small integers, this arithmetic
is exact: after k calls each element is s * n**(k-1). A call that some element missed or repeated
leaves another value, which the later calls preserve. The first values are scaled by
2**(salt - BIAS), so that 208 calls of two ranks stay within float32's normal numbers:

    1 <= x_r < 2**11, s < 2**12, salt < 4:  2**-126 < 2**-110  and  2**(12 + 3 - 110 + 207) < 2**128

turns.h has the same arithmetic.
"""

from __future__ import annotations

import torch

BIAS = 110
MODULUS = 2039
"""The period of the pattern: a prime, so that no power-of-two shift maps the buffer onto itself."""


def contribution(rank: int, count: int) -> torch.Tensor:
    """Return a rank's values, integers in 1..MODULUS: (7 * index + 331 * rank) mod MODULUS + 1."""
    period = (torch.arange(MODULUS) * 7 + rank * 331).remainder_(MODULUS).add_(1).float()
    return period.repeat(-(-count // MODULUS))[:count]


def total(size: int, count: int) -> torch.Tensor:
    """Return the sum of all ranks' contributions, element by element."""
    period = sum(contribution(rank, MODULUS) for rank in range(size))
    assert isinstance(period, torch.Tensor)
    return period.repeat(-(-count // MODULUS))[:count]


def fill(buffer: torch.Tensor, contribution: torch.Tensor, salt: int) -> None:
    """Fill the buffer for a turn.

    `salt` (0 to 3) makes the values differ between turns.
    """
    torch.mul(contribution, 2.0 ** (salt - BIAS), out=buffer)


def check(buffer: torch.Tensor, total: torch.Tensor, size: int, calls: int, salt: int) -> None:
    """Raise ArithmeticError unless `buffer` has the contents that `calls` correct calls leave.

    The buffer is scaled back to `total` in place.
    """
    growth = (size.bit_length() - 1) * (calls - 1)
    buffer.mul_(2.0 ** (BIAS - salt - growth))
    if not torch.equal(buffer, total):
        wrong = int((buffer != total).nonzero()[0])
        raise ArithmeticError(
            f"element {wrong} is {buffer[wrong].item()} times its scale "
            f"instead of {total[wrong].item()} after {calls} calls"
        )
