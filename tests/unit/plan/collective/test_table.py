import math
from collections import Counter, deque
from collections.abc import Iterator

import pytest

from slackline import wire
from slackline.errors import UsageError
from slackline.plan.collective import (
    PLANS,
    TREE_NUMBERS,
    Collective,
    CollectivePlan,
    Kind,
    check,
    generate,
    grid,
    name_of_number,
    names,
    part,
)

RANKS = (*range(1, 10), 16)


def plans_of(collective: Collective, name: str) -> Iterator[CollectivePlan]:
    for ranks in RANKS if collective is not Collective.POINT_TO_POINT else (1, 2):
        for root in range(ranks) if collective.rooted else (None,):
            yield generate(collective, name, ranks, root)


@pytest.mark.parametrize(("collective", "name"), PLANS)
def test_every_plan_is_valid_for_every_number_of_ranks_and_every_root(
    collective: Collective, name: str
) -> None:
    for plan in plans_of(collective, name):
        assert check(plan).fault is None, f"{plan}: {check(plan).fault}"


@pytest.mark.parametrize(("collective", "name"), PLANS)
def test_every_plan_claims_rank_order_exactly_where_it_has_it(
    collective: Collective, name: str
) -> None:
    for plan in plans_of(collective, name):
        assert plan.rank_ordered == check(plan).rank_ordered, str(plan)


@pytest.mark.parametrize(("collective", "name"), PLANS)
def test_every_plan_also_runs_strictly_in_listed_order(collective: Collective, name: str) -> None:
    for plan in plans_of(collective, name):
        assert runs_in_listed_order(plan), f"{plan}\n{grid(plan)}"


def runs_in_listed_order(plan: CollectivePlan) -> bool:
    programs = [deque(program) for program in plan.programs]
    travelling: Counter[tuple[int, int, int]] = Counter()
    moved = True
    while moved:
        moved = False
        for rank, program in enumerate(programs):
            while program:
                instruction = program[0]
                if instruction.kind is Kind.SEND:
                    travelling[rank, instruction.peer, instruction.chunk] += 1
                elif instruction.kind.receives:
                    link = (instruction.peer, rank, instruction.chunk)
                    if not travelling[link]:
                        break
                    travelling[link] -= 1
                program.popleft()
                moved = True
    return not any(programs)


@pytest.mark.parametrize(("collective", "name"), PLANS)
def test_a_part_is_the_members_share_of_the_whole_plan(collective: Collective, name: str) -> None:
    for plan in plans_of(collective, name):
        every_root = range(plan.ranks) if collective.rooted else (None,)
        whole = [generate(collective, name, plan.ranks, root) for root in every_root]
        for member, program in enumerate(plan.programs):
            mine = part(collective, name, plan.ranks, member, plan.root)
            assert mine.program == program
            assert (mine.collective, mine.name, mine.member) == (collective, name, member)
            assert (mine.ranks, mine.helpers, mine.members, mine.chunks) == (
                plan.ranks,
                plan.helpers,
                plan.members,
                plan.chunks,
            )
            assert mine.forwards == any(map(forwards, whole)), str(plan)
            assert mine.adds == any(each.kind is Kind.ADD for _, _, each in plan.cells())


def forwards(plan: CollectivePlan) -> bool:
    received = set[tuple[int, int]]()
    for rank, _, instruction in plan.cells():
        if instruction.kind is not Kind.SEND:
            received.add((rank, instruction.chunk))
        elif (rank, instruction.chunk) in received:
            return True
    return False


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, "comet", 4, 0), 'all_reduce has no plan "comet"; its plans are direct, mesh, ring'),
        ((1, "ring", 4, 4), "member must be 0 to 3, not 4"),
        ((1, "ring", 4, -1), "member must be 0 to 3, not -1"),
        ((1, "star", 4, 5), "member must be 0 to 4, not 5"),
        ((4, "chain", 4, 0), "broadcast needs a root from 0 to 3, not None"),
    ],
)
def test_a_part_that_no_plan_has_is_refused(
    values: tuple[int, str, int, int], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        part(*values)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("ranks", [2, 3, 5, 8, 9, 300])
def test_a_dissemination_barrier_takes_the_logarithm_of_the_ranks_in_rounds(ranks: int) -> None:
    plan = generate(Collective.BARRIER, "dissemination", ranks)
    rounds = math.ceil(math.log2(ranks))
    for rank, program in enumerate(plan.programs):
        sends, adds = program[::2], program[1::2]
        assert [each.kind for each in sends] == [Kind.SEND] * rounds
        assert [each.peer for each in sends] == [(rank + 2**k) % ranks for k in range(rounds)]
        assert [each.kind for each in adds] == [Kind.ADD] * rounds
        assert [each.peer for each in adds] == [(rank - 2**k) % ranks for k in range(rounds)]
        assert [each.last for each in adds] == [False] * (rounds - 1) + [True]


@pytest.mark.parametrize(("collective", "name"), PLANS)
def test_a_single_rank_has_nothing_to_do(collective: Collective, name: str) -> None:
    plan = generate(collective, name, 1, 0 if collective.rooted else None)
    assert plan.programs == ((),)


@pytest.mark.parametrize(
    ("collective", "name"),
    [
        (Collective.ALL_REDUCE, "direct"),
        (Collective.ALL_REDUCE, "mesh"),
        (Collective.ALL_REDUCE, "ring"),
        (Collective.REDUCE_SCATTER, "mesh"),
        (Collective.ALL_GATHER, "mesh"),
        (Collective.ALL_TO_ALL, "direct"),
    ],
)
def test_no_two_ranks_send_to_the_same_rank_at_the_same_step(
    collective: Collective, name: str
) -> None:
    plan = generate(collective, name, 7)
    targets = [
        [each.peer for each in program if each.kind is Kind.SEND] for program in plan.programs
    ]
    for step in zip(*targets, strict=True):
        assert len(set(step)) == plan.ranks


def test_the_reduce_broadcast_ring_reads_as_two_chains() -> None:
    programs = generate(Collective.ALL_REDUCE, "reduce-broadcast", 4).programs
    assert [" ".join(map(str, program)) for program in programs] == [
        "SEND_1C0 COPY_3C0 SEND_1C0",
        "ADD_0C0 SEND_2C0 COPY_0C0 SEND_2C0",
        "ADD_1C0 SEND_3C0 COPY_1C0",
        "ADD_2C0! SEND_0C0",
    ]


def test_the_ring_reads_as_its_picture() -> None:
    programs = generate(Collective.ALL_REDUCE, "ring", 3).programs
    assert " ".join(map(str, programs[0])) == (
        "SEND_1C2 ADD_2C1 SEND_1C1 ADD_2C0! SEND_1C0 COPY_2C2 SEND_1C2 COPY_2C1"
    )


def test_halving_doubling_folds_the_extra_rank_in_and_out() -> None:
    programs = generate(Collective.ALL_REDUCE, "halving-doubling", 3).programs
    assert [" ".join(map(str, program)) for program in programs] == [
        "ADD_2C0 ADD_2C1 SEND_1C1 ADD_1C0! SEND_1C0 COPY_1C1 SEND_2C0 SEND_2C1",
        "SEND_0C0 ADD_0C1! SEND_0C1 COPY_0C0",
        "SEND_0C0 SEND_0C1 COPY_0C0 COPY_0C1",
    ]


def test_a_star_has_a_helper_that_adds_for_all() -> None:
    plan = generate(Collective.ALL_REDUCE, "star", 2)
    assert (plan.ranks, plan.helpers, plan.members) == (2, 1, 3)
    assert [" ".join(map(str, program)) for program in plan.programs] == [
        "SEND_2C0 COPY_2C0",
        "SEND_2C0 COPY_2C0",
        "BUFFER_0C0 BUFFER_1C0 REDUCE_ALL_C0 SEND_0C0 SEND_1C0",
    ]


def test_plans_that_need_a_helper_are_offered_to_those_who_have_one() -> None:
    without = names(Collective.ALL_REDUCE)
    assert "star" not in without
    assert names(Collective.ALL_REDUCE, helpers=1) == (*without, "star")


def test_a_torus_of_a_prime_number_of_ranks_is_the_ring() -> None:
    torus = generate(Collective.ALL_REDUCE, "torus", 7)
    assert torus.programs == generate(Collective.ALL_REDUCE, "ring", 7).programs


def test_the_codes_are_those_of_the_frame_header() -> None:
    codes = {each.name: each.value for each in wire.Collective if each.value}
    assert {each.name: each.value for each in Collective} == codes


def test_a_collective_may_be_given_by_its_code() -> None:
    plan = generate(wire.Collective.ALL_REDUCE, "ring", 3)
    assert plan == generate(Collective.ALL_REDUCE, "ring", 3)
    assert plan.collective is Collective.ALL_REDUCE
    assert names(wire.Collective.REDUCE) == ("direct", "chain")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((1, "ring", 0), "ranks must be a positive integer, not 0"),
        ((1, "ring", -3), "ranks must be a positive integer, not -3"),
        (
            (1, "comet", 4),
            'all_reduce has no plan "comet"; its plans are '
            "direct, mesh, ring, reduce-broadcast, halving-doubling, torus, flat-tree, star, "
            "hierarchical",
        ),
        ((1, "ring", 4, 2), "all_reduce takes no root, not 2"),
        ((4, "chain", 4), "broadcast needs a root from 0 to 3, not None"),
        ((4, "chain", 4, 4), "broadcast needs a root from 0 to 3, not 4"),
        ((10, "direct", 3, 0), "point_to_point has at most 2 ranks, not 3"),
        (
            (0, "ring", 4),
            "collective must be one of 1 all_reduce, 2 reduce_scatter, 3 all_gather, 4 broadcast, "
            "5 reduce, 6 gather, 7 scatter, 8 all_to_all, 9 barrier, 10 point_to_point, not 0",
        ),
    ],
)
def test_a_wrong_value_is_named_with_the_right_ones(
    values: tuple[int, str, int], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        generate(*values)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("chunks", "programs", "message"),
    [
        (0, ((), ()), "chunks must be a positive integer, not 0"),
        (1, ((),), "2 ranks need 2 programs, not 1"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(
    chunks: int, programs: tuple[()], message: str
) -> None:
    with pytest.raises(UsageError) as error:
        CollectivePlan(
            name="own",
            collective=Collective.ALL_REDUCE,
            ranks=2,
            chunks=chunks,
            programs=programs,
            rank_ordered=False,
        )
    assert str(error.value) == message


def test_every_number_in_a_header_names_one_plan() -> None:
    every = names(Collective.ALL_REDUCE, helpers=1, by_host=True)
    for number, name in [*enumerate(every, 1), *((n, name) for name, n in TREE_NUMBERS.items())]:
        assert name_of_number(Collective.ALL_REDUCE, number) == name
    assert len(every) < min(TREE_NUMBERS.values())
    assert max(TREE_NUMBERS.values()) < 16
    for collective, number in ((Collective.ALL_REDUCE, 12), (Collective.BROADCAST, 15)):
        with pytest.raises(IndexError):
            name_of_number(collective, number)
