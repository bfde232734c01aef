from dataclasses import replace

import pytest

from slackline.errors import UsageError
from slackline.plan.collective import (
    Collective,
    CollectivePlan,
    Instruction,
    check,
    generate,
    validate,
)

RING = generate(Collective.ALL_REDUCE, "ring", 3)
MESH = generate(Collective.ALL_REDUCE, "mesh", 3)
DIRECT = generate(Collective.ALL_REDUCE, "direct", 3)
CHAIN = generate(Collective.ALL_REDUCE, "reduce-broadcast", 3)
BROADCAST = generate(Collective.BROADCAST, "chain", 3, 0)


def edited(plan: CollectivePlan, rank: int, start: int, stop: int, tokens: str) -> CollectivePlan:
    """Return the plan with instructions `start` to `stop` of one rank replaced by `tokens`."""
    program = list(plan.programs[rank])
    program[start:stop] = [Instruction.parse(token) for token in tokens.split()]
    programs = list(plan.programs)
    programs[rank] = tuple(program)
    return replace(plan, programs=tuple(programs))


def without(plan: CollectivePlan, rank: int, index: int) -> CollectivePlan:
    return edited(plan, rank, index, index + 1, "")


def written(
    collective: Collective,
    *programs: str,
    chunks: int = 1,
    root: int | None = None,
    rank_ordered: bool = False,
) -> CollectivePlan:
    return CollectivePlan(
        name="own",
        collective=collective,
        ranks=len(programs),
        chunks=chunks,
        root=root,
        programs=tuple(
            tuple(Instruction.parse(token) for token in program.split()) for program in programs
        ),
        rank_ordered=rank_ordered,
    )


BROKEN = {
    "a barrier that a round is missing from": (
        written(
            Collective.BARRIER,
            "SEND_1C0 ADD_3C0!",
            "SEND_2C0 ADD_0C0!",
            "SEND_3C0 ADD_1C0!",
            "SEND_0C0 ADD_2C0!",
        ),
        "rank 1, instruction 1 (ADD_0C0!): "
        "is marked last and the contribution of ranks 2, 3 is missing",
    ),
    "a dropped SEND": (
        without(RING, 0, 4),
        "rank 1, instruction 5 (COPY_0C0): "
        "waits for a message about chunk 0 that rank 0 never sends",
    ),
    "a dropped send whose place a later one would take": (
        without(RING, 0, 0),
        "rank 0, instruction 4 (COPY_2C2): waits for rank 2, which waits for rank 1, "
        "which waits for rank 0: no one can go on",
    ),
    "a dropped ADD loses a contribution": (
        without(RING, 0, 1),
        "rank 1, instruction 3 (ADD_0C1!): "
        "is marked last and the contribution of rank 2 is missing",
    ),
    "a dropped COPY leaves a message": (
        without(MESH, 0, 7),
        "rank 2, instruction 5 (SEND_0C2): rank 0 never receives this message",
    ),
    "a dropped BUFFER": (
        without(MESH, 0, 2),
        "rank 0, instruction 3 (REDUCE_ALL_C0): the contribution of rank 2 is not buffered",
    ),
    "a dropped REDUCE_ALL": (
        without(DIRECT, 0, 4),
        "rank 0, instruction 2 (BUFFER_2C0): rank 0 buffers this for chunk 0 and never reduces it",
    ),
    "a duplicated ADD": (
        edited(edited(CHAIN, 0, 0, 1, "SEND_1C0 SEND_1C0"), 1, 0, 1, "ADD_0C0 ADD_0C0"),
        "rank 1, instruction 1 (ADD_0C0): reduces the contribution of rank 0 twice",
    ),
    "a duplicated SEND": (
        edited(CHAIN, 0, 0, 1, "SEND_1C0 SEND_1C0"),
        "rank 1, instruction 2 (COPY_0C0): copies a partial of rank 0, which is not final",
    ),
    "a duplicated BUFFER": (
        edited(edited(DIRECT, 0, 0, 1, "SEND_1C0 SEND_1C0"), 1, 2, 3, "BUFFER_0C0 BUFFER_0C0"),
        "rank 1, instruction 3 (BUFFER_0C0): rank 0's contribution is already buffered",
    ),
    "a duplicated COPY": (
        written(Collective.BROADCAST, "SEND_1C0 SEND_1C0", "COPY_0C0 COPY_0C0", root=0),
        "rank 1, instruction 1 (COPY_0C0): the rank already has the final value of rank 0",
    ),
    "an ADD and a SEND swapped": (
        edited(CHAIN, 1, 0, 2, "SEND_2C0 ADD_0C0"),
        "rank 2, instruction 0 (ADD_1C0!): "
        "is marked last and the contribution of rank 0 is missing",
    ),
    "a COPY and a SEND swapped": (
        edited(BROADCAST, 1, 0, 2, "SEND_2C0 COPY_0C0"),
        "rank 1, instruction 0 (SEND_2C0): the rank has nothing of chunk 0 yet",
    ),
    "a completing ADD that is not last": (
        edited(CHAIN, 2, 0, 1, "ADD_1C0"),
        "rank 2, instruction 0 (ADD_1C0): completes the chunk and is not marked last",
    ),
    "an ADD that is last too early": (
        edited(CHAIN, 1, 0, 1, "ADD_0C0!"),
        "rank 1, instruction 0 (ADD_0C0!): "
        "is marked last and the contribution of rank 2 is missing",
    ),
    "two ranks that wait for each other": (
        written(Collective.ALL_REDUCE, "ADD_1C0! SEND_1C0", "ADD_0C0! SEND_0C0"),
        "rank 0, instruction 0 (ADD_1C0!): waits for rank 1, which waits for rank 0: "
        "no one can go on",
    ),
    "an ADD of a final value": (
        written(Collective.ALL_REDUCE, "SEND_1C0 ADD_1C0!", "ADD_0C0! SEND_0C0"),
        "rank 0, instruction 1 (ADD_1C0!): "
        "adds the final value of ranks 0, 1 to a partial of rank 0",
    ),
    "a BUFFER of a partial": (
        written(Collective.ALL_REDUCE, "SEND_1C0", "ADD_0C0 SEND_2C0", "BUFFER_1C0"),
        "rank 2, instruction 0 (BUFFER_1C0): "
        "buffers a partial of ranks 0, 1, which is not rank 1's own",
    ),
    "a BUFFER beside a final value": (
        written(Collective.REDUCE, "SEND_1C0 SEND_1C0", "ADD_0C0! BUFFER_0C0", root=1),
        "rank 1, instruction 1 (BUFFER_0C0): the rank already has the final value of ranks 0, 1",
    ),
    "a REDUCE_ALL of a final value": (
        written(Collective.ALL_REDUCE, "SEND_1C0", "ADD_0C0! REDUCE_ALL_C0"),
        "rank 1, instruction 1 (REDUCE_ALL_C0): "
        "reduces into the final value of ranks 0, 1, which is not the rank's own",
    ),
    "an ADD where nothing is reduced": (
        edited(BROADCAST, 1, 0, 1, "ADD_0C0"),
        "rank 1, instruction 0 (ADD_0C0): broadcast reduces nothing",
    ),
    "a rank that sends to itself": (
        written(Collective.ALL_REDUCE, "SEND_0C0", ""),
        "rank 0, instruction 0 (SEND_0C0): the peer must be another rank below 2, not 0",
    ),
    "a rank that is not there": (
        written(Collective.ALL_REDUCE, "SEND_2C0", ""),
        "rank 0, instruction 0 (SEND_2C0): the peer must be another rank below 2, not 2",
    ),
    "a chunk that is not there": (
        written(Collective.ALL_REDUCE, "SEND_1C1", ""),
        "rank 0, instruction 0 (SEND_1C1): the plan has chunks 0 to 0",
    ),
    "a chunk that never arrives": (
        written(Collective.ALL_GATHER, "SEND_1C0", "COPY_0C0", chunks=2),
        "rank 0, at the end: chunk 1 is due here and the rank has nothing",
    ),
    "a reduction that never happens": (
        written(Collective.REDUCE, "", "", root=1),
        "rank 1, at the end: chunk 0 is due here and the rank has a partial of rank 1",
    ),
    "a false claim of rank order": (
        replace(RING, rank_ordered=True),
        "rank 0, at the end: the plan claims rank order, but chunk 0 is reduced in order 1, 2, 0",
    ),
    "a false claim of rank order where groups are reduced first": (
        written(
            Collective.REDUCE,
            "SEND_1C0",
            "ADD_0C0 SEND_3C0",
            "SEND_3C0",
            "ADD_2C0 ADD_1C0!",
            root=3,
            rank_ordered=True,
        ),
        "rank 3, at the end: the plan claims rank order, "
        "but chunk 0 is reduced in order 0, 1, 2, 3 by groups",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_plan_is_caught_at_its_cell(what: str) -> None:
    plan, message = BROKEN[what]
    verdict = check(plan)
    assert str(verdict.fault) == message
    assert not verdict.rank_ordered


@pytest.mark.parametrize("plan", [RING, MESH, DIRECT, CHAIN, BROADCAST], ids=str)
def test_no_instruction_can_be_dropped(plan: CollectivePlan) -> None:
    for rank, index, _ in plan.cells():
        assert check(without(plan, rank, index)).fault is not None


@pytest.mark.parametrize("plan", [RING, CHAIN, BROADCAST], ids=str)
def test_no_instruction_can_be_done_twice(plan: CollectivePlan) -> None:
    for rank, index, instruction in plan.cells():
        twice = edited(plan, rank, index, index, str(instruction))
        assert check(twice).fault is not None


def test_a_hand_written_plan_in_rank_order_is_seen_to_be() -> None:
    plan = written(Collective.REDUCE, "SEND_1C0", "ADD_0C0!", root=1)
    assert check(plan).fault is None
    assert check(plan).rank_ordered


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (
            "BUFFER_0C0 REDUCE_ALL_C0 SEND_0C0 SEND_1C0",
            "the contribution of rank 1 is not buffered",
        ),
        ("ADD_0C0 ADD_1C0! SEND_0C0 SEND_1C0", "a helper has no data to add to"),
        ("SEND_0C0", "the rank has nothing of chunk 0 yet"),
    ],
)
def test_a_helper_has_nothing_of_its_own(program: str, reason: str) -> None:
    star = generate(Collective.ALL_REDUCE, "star", 2)
    wrong = tuple(Instruction.parse(token) for token in program.split())
    fault = check(replace(star, programs=(*star.programs[:2], wrong))).fault
    assert fault is not None
    assert (fault.rank, fault.reason) == (2, reason)


def test_a_valid_plan_is_handed_back() -> None:
    assert validate(RING) is RING


def test_the_error_of_a_broken_plan_points_into_its_grid() -> None:
    plan, _ = BROKEN["an ADD and a SEND swapped"]
    with pytest.raises(UsageError) as error:
        validate(plan)
    assert error.value.rank == 2
    assert str(error.value).splitlines() == [
        "all_reduce reduce-broadcast, 3 ranks: rank 2, instruction 0 (ADD_1C0!): "
        "is marked last and the contribution of rank 0 is missing",
        "     rank 0    rank 1    rank 2",
        "  0  SEND_1C0  SEND_2C0  ADD_1C0!  <- rank 2",
        "  1  COPY_2C0  ADD_0C0   SEND_0C0",
        "  2  SEND_1C0  COPY_0C0",
    ]
