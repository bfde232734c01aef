"""Tests with real ranks over TCP: the health monitor names a delay that the engine's injector
causes, and its end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slackline.history import read_directory
from slackline.records import LinkVerdict

MS = 1_000_000


def _until(done: Callable[[], bool]) -> int:
    """Reduce until rank 0 is content. Return the number of reductions, which is the same on all
    ranks."""
    import torch
    from torch import distributed as dist

    count = 0
    content = torch.zeros(1)
    ballast = torch.zeros(1 << 18)  # 1 MiB, which the injector holds back like a long path
    while not content.item():
        count += 1
        content[0] = float(dist.get_rank() == 0 and done())
        dist.all_reduce(ballast)
        dist.all_reduce(content)
    return count


def delayed(rank: int, size: int) -> list[str]:
    from torch import distributed as dist

    from slackline._native import FaultState
    from slackline.backend import group_of

    group = group_of(dist.group.WORLD)
    engine = group._engine

    def words() -> list[str]:
        return [str(judgement.decision) for judgement in group.health()]

    def slow() -> bool:
        return "slow" in words()

    _until(lambda: words() == ["well"] * (2 * (size - 1)))
    link = engine.rails()[0].link
    if rank == 0:
        engine.set_fault(link, -1, FaultState(delay_ns=30 * MS))
    _until(slow)
    told = [judgement.reason for judgement in group.health()]
    if rank == 0:
        engine.set_fault(link, -1, None)
    _until(lambda: not slow())
    return told


@pytest.mark.slow
def test_a_delay_is_named_with_its_direction_and_so_is_its_end(job: Any, tmp_path: Path) -> None:
    environment = {"SLACKLINE_RAILS": "tcp", "SLACKLINE_TELEMETRY": str(tmp_path)}
    told = job(2, delayed, environment=environment)
    (there,) = (reason for reason in told[0] if reason.startswith("link 0>1 "))
    assert there.startswith("link 0>1 is slow since ")
    assert " ms over its usual " in there
    assert there.endswith("; nothing more than usual waits at the sender")
    said = [
        record
        for record in read_directory(tmp_path)
        if isinstance(record, LinkVerdict) and record.rank == 0
    ]
    slow = next(record for record in said if record.condition == "slow")
    assert (slow.source, slow.target) == (0, 1)
    assert 25 * MS < slow.over_ns < 60 * MS
    assert [(r.condition, r.source, r.target) for r in said if r.condition == "back"][-1] == (
        "back",
        0,
        1,
    )
