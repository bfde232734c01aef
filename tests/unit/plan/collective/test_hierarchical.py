"""The hierarchical plan is valid for every shape, and a program is made when it is asked for."""

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import check, hierarchical, trace


@pytest.mark.parametrize("hosts", [1, 2, 3, 5])
@pytest.mark.parametrize("per_host", [1, 2, 3, 4])
def test_every_shape_is_valid(hosts: int, per_host: int) -> None:
    plan = hierarchical(hosts, per_host)
    assert check(plan).fault is None
    assert len(plan.programs) == plan.ranks == hosts * per_host


def test_a_host_sends_as_much_over_the_network_as_a_single_rank_would() -> None:
    """Count messages of 1 / (p q) S: q (2 p - 2) of them leave a host, 2 (p - 1) / p S."""
    hosts, per_host = 3, 4
    plan = hierarchical(hosts, per_host)
    sent = [0] * hosts
    for event in trace(plan).events:
        if event.sent_by is not None:
            source, target = event.sent_by[0] // per_host, event.cell[0] // per_host
            sent[source] += source != target
    assert sent == [per_host * 2 * (hosts - 1)] * hosts


def test_a_program_of_a_huge_plan_is_made_alone() -> None:
    plan = hierarchical(10**6, 1)
    assert len(plan.programs) == 10**6
    with pytest.raises(IndexError):
        plan.programs[10**6]


def test_plans_of_one_shape_are_equal() -> None:
    assert hierarchical(2, 3) == hierarchical(2, 3)
    assert hierarchical(2, 3) != hierarchical(3, 2)
    assert hierarchical(2, 3).programs[1:3] == tuple(hierarchical(2, 3).programs)[1:3]


@pytest.mark.parametrize(
    ("hosts", "per_host", "said"),
    [
        (0, 1, "hosts must be a positive integer, not 0"),
        (1, -1, "ranks_per_host must be a positive integer, not -1"),
    ],
)
def test_a_wrong_shape_is_refused(hosts: int, per_host: int, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        hierarchical(hosts, per_host)
    assert str(raised.value) == said
