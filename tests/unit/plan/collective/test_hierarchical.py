"""The hierarchical plan is valid for every shape, and a program is made when it is asked for."""

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import (
    Collective,
    check,
    generate,
    hierarchical,
    names,
    part,
    trace,
)


@pytest.mark.parametrize("hosts", [1, 2, 3, 5])
@pytest.mark.parametrize("per_host", [1, 2, 3, 4])
def test_every_shape_is_valid(hosts: int, per_host: int) -> None:
    plan = hierarchical(hosts, per_host)
    assert check(plan).fault is None
    assert len(plan.programs) == plan.ranks == hosts * per_host


def test_a_host_sends_as_much_over_the_network_as_a_single_rank_would() -> None:
    """Count messages of S / (p q) bytes: q (2 p - 2) leave a host, 2 (p - 1) / p S bytes in all."""
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


def test_the_table_has_the_plan_of_every_shape() -> None:
    for hosts, per_host in ((1, 1), (1, 4), (4, 1), (2, 3)):
        plan = generate(
            Collective.ALL_REDUCE, "hierarchical", hosts * per_host, ranks_per_host=per_host
        )
        assert plan.programs == tuple(hierarchical(hosts, per_host).programs)
        for rank in range(plan.ranks):
            mine = part(Collective.ALL_REDUCE, plan.name, plan.ranks, rank, ranks_per_host=per_host)
            assert mine.program == plan.programs[rank]


def test_only_plans_by_host_take_the_ranks_of_each_host() -> None:
    assert "hierarchical" not in names(Collective.ALL_REDUCE)
    assert "hierarchical" in names(Collective.ALL_REDUCE, by_host=True)
    for name, per_host, said in (
        ("ring", 2, 'the plan "ring" takes no ranks_per_host, not 2'),
        ("hierarchical", 3, "ranks_per_host must be a divisor of 4 ranks, not 3"),
        ("hierarchical", 0, "ranks_per_host must be a divisor of 4 ranks, not 0"),
    ):
        with pytest.raises(UsageError) as raised:
            generate(Collective.ALL_REDUCE, name, 4, ranks_per_host=per_host)
        assert str(raised.value) == said


def test_a_lazy_plan_has_the_programs_of_the_whole_one() -> None:
    for name in ("ring", "star", "direct"):
        whole, lazy = (
            generate(Collective.ALL_REDUCE, name, 5, lazily=each) for each in (False, True)
        )
        assert tuple(lazy.programs) == whole.programs
        assert lazy.programs[-1] == whole.programs[-1]
