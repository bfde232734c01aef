"""What each rank measured, told to all: on its way during a step, read two steps later.

So nobody waits for it, over however slow a link, and all ranks have it at the same step.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from slackline.nic import Group, Transfer
from slackline.pipeline._adapt import Measured
from slackline.pipeline._record import StepRecord
from slackline.wire import DType

__all__ = ["News"]

_AHEAD = 2
_COLUMNS = 6
"""Stage, F, B, W, delay of activations, delay of gradients."""


class News:
    """The exchange of one schedule's ranks."""

    def __init__(
        self, nic: Group, placement: Sequence[int], clocks: Sequence[str], tag: int
    ) -> None:
        """`clocks`: ranks that have it in common can tell a message's delay by themselves."""
        self._nic = nic
        self._placement = placement
        self._clocks = clocks
        self._tag = tag
        most = max(list(placement).count(rank) for rank in range(nic.size))
        self._count = most * _COLUMNS
        self._under_way: deque[tuple[int, Transfer, Tensor, Tensor]] = deque()

    def tell(self, record: StepRecord) -> None:
        """Sends this rank's measurements of a step to all; waits for nothing."""
        rows = []
        for stage, _ in record.peak_held:
            down = record.delay_ns(stage, backward=False)
            up = record.delay_ns(stage, backward=True)
            rows += [stage, *record.times_ns(stage), down or 0, up or 0]
        rows += [-1] * (self._count - len(rows))
        mine = torch.tensor(rows)
        found = torch.empty(self._nic.size, self._count, dtype=torch.int64)
        transfer = self._nic.all_gather(
            mine.data_ptr(),
            [each.data_ptr() for each in found],
            [self._count] * self._nic.size,
            DType.INT64,
            tag=self._tag,
        )
        self._under_way.append((record.step, transfer, mine, found))

    def hear(self) -> Measured | None:
        """What all have told of the step before the last one; None while there is none."""
        if len(self._under_way) < _AHEAD:
            return None
        step, transfer, _, found = self._under_way.popleft()
        transfer.wait()
        rows: list[list[int]] = sorted(
            row for row in found.view(-1, _COLUMNS).tolist() if row[0] >= 0
        )
        links = range(len(rows) - 1)
        delays = [self._delays(link, rows[link + 1][4], rows[link][5]) for link in links]
        return Measured(
            step=step,
            forward=tuple(row[1] for row in rows),
            backward=tuple(row[2] for row in rows),
            weights=tuple(row[3] for row in rows),
            down=tuple(down for down, _ in delays),
            up=tuple(up for _, up in delays),
        )

    def _delays(self, link: int, down: int, up: int) -> tuple[int, int]:
        """Between two clocks the difference is in both, with either sign: the mean is without."""
        above, below = self._placement[link], self._placement[link + 1]
        if self._clocks[above] != self._clocks[below]:
            down = up = (down + up) // 2
        return max(down, 0), max(up, 0)
