"""The exchange of step measurements between the ranks of a pipeline.

Measurements are sent after a step and read two steps later. Therefore a rank rarely waits for them,
even over a slow link, and all ranks use them at the same step.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from slackline.nic import Group, Operation, Transfer
from slackline.pipeline._record import StepRecord
from slackline.pipeline.replan._decision import StepMetrics
from slackline.wire import DType

__all__ = ["MetricsExchange"]

_AHEAD = 2
_HEAD = 4
"""The values before the rows: the size of a new plan, the time of the step, the wait for a core and
the number of computations."""
_COLUMNS = 6
"""The columns of a row: stage, times of F, B and W, delay of activations, delay of gradients."""


class MetricsExchange:
    """The exchange of measurements between the ranks of one schedule."""

    def __init__(
        self, nic: Group, placement: Sequence[int], clocks: Sequence[str], tag: int
    ) -> None:
        """Create the exchange, which uses one tag of the group.

        `clocks` names the monotonic clock of each rank. Two ranks with the same clock measure the
        delay of each direction exactly; other ranks measure only the mean of both directions.
        """
        self._nic = nic
        self._placement = placement
        self._clocks = clocks
        self._tag = tag
        most = max(list(placement).count(rank) for rank in range(nic.size))
        self._count = _HEAD + most * _COLUMNS
        self._under_way: deque[tuple[int, Transfer, Tensor]] = deque()
        # The queue keeps the buffers of pending transfers, also when the schedule is dropped.
        self._pending = nic.completion_queue()

    def publish(self, record: StepRecord, plan_bytes: int) -> None:
        """Send this rank's measured times of a step to all ranks; do not block.

        `plan_bytes` is the size of a new plan that this rank offers to all ranks; 0 without one.
        """
        waited = 0 if record.core_times is None else record.core_times.delay_ns
        rows = [plan_bytes, record.wall_ns, waited, len(record.spans)]
        for stage, _ in record.peak_held:
            down = record.delay_ns(stage, backward=False)
            up = record.delay_ns(stage, backward=True)
            rows += [stage, *record.times_ns(stage), down or 0, up or 0]
        rows += [-1] * (self._count - len(rows))
        mine = torch.tensor(rows, dtype=torch.int64, device="cpu")
        found = torch.empty(self._nic.size, self._count, dtype=torch.int64, device="cpu")
        operation = Operation.all_gather(
            mine.data_ptr(),
            [each.data_ptr() for each in found],
            [self._count] * self._nic.size,
            DType.INT64,
            tag=self._tag,
        )
        transfer = self._nic.post(operation)
        self._pending.add(transfer, (mine, found))
        self._under_way.append((record.step, transfer, found))

    def poll(self) -> tuple[StepMetrics, int] | None:
        """Return all ranks' measurements of the step before the latest; None while there are none.

        The second value is the size in bytes of the plan that a rank offers; 0 without one. Blocks
        if a rank's measurements have not arrived yet.
        """
        if len(self._under_way) < _AHEAD:
            return None
        step, transfer, found = self._under_way.popleft()
        transfer.wait()
        self._pending.poll()
        rows: list[list[int]] = sorted(
            row for row in found[:, _HEAD:].reshape(-1, _COLUMNS).tolist() if row[0] >= 0
        )
        links = range(len(rows) - 1)
        delays = [self._delays(link, rows[link + 1][4], rows[link][5]) for link in links]
        walls, waits, counts = (found[:, column].tolist() for column in (1, 2, 3))
        each_ns = [wait // max(1, count) for wait, count in zip(waits, counts, strict=True)]
        metrics = StepMetrics(
            step=step,
            forward=tuple(row[1] for row in rows),
            backward=tuple(row[2] for row in rows),
            weights=tuple(row[3] for row in rows),
            down=tuple(down for down, _ in delays),
            up=tuple(up for _, up in delays),
            wall=max(walls),
            core_wait=sum(waits) / max(1, sum(walls)),
            core_waits=tuple(each_ns[rank] for rank in self._placement),
        )
        return metrics, int(found[:, 0].max())

    def _delays(self, link: int, down: int, up: int) -> tuple[int, int]:
        """Return the delays of a link's two directions, without the difference of the two clocks.

        The clocks' difference is added to one measured delay and subtracted from the other, so it
        cancels in their mean. Ranks with one clock keep their measured delays.
        """
        above, below = self._placement[link], self._placement[link + 1]
        if self._clocks[above] != self._clocks[below]:
            down = up = (down + up) // 2
        return max(down, 0), max(up, 0)
