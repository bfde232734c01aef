"""Tests of the events of a run: slices, waits, arrows, counters and instants, with their times."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_records import operations, write
from trace_runs import (
    BROADCAST,
    GROUP,
    MESSAGE,
    MS,
    UNIX,
    clock_offset,
    header,
    link,
    opened,
    pipeline,
    row,
    step,
)

from slackline.errors import UsageError
from slackline.history import Recording
from slackline.records import Decision, Gap, LinkVerdict, Operations, file_of
from slackline.views.trace import Event, Instant, Process, Sample, Slice, Totals, Track, events_of


def read(directory: Path, totals: Totals | None = None) -> list[Event]:
    return list(events_of(Recording(directory, pytest.fail), totals))


def slices(events: list[Event], rank: int, category: str) -> list[tuple[str, float, float]]:
    """Return the name and the times, in milliseconds, of a rank's slices of one category."""
    return [
        (each.name, (each.begin_ns - UNIX) / MS, (each.end_ns - UNIX) / MS)
        for each in events
        if isinstance(each, Slice) and (each.track.rank, each.category) == (rank, category)
    ]


def arrows(events: list[Event]) -> list[tuple[str, str]]:
    """Return the slices that arrows join, as "rank name", checked for times and numbers."""
    found = [each for each in events if isinstance(each, Slice)]
    begins = {flow: each for each in found for flow in each.flows_out}
    ends = {flow: each for each in found for flow in each.flows_in}
    assert len(begins) == sum(len(each.flows_out) for each in found)
    assert len(ends) == sum(len(each.flows_in) for each in found)
    assert begins.keys() == ends.keys()
    for flow, begin in begins.items():
        assert begin.begin_ns <= ends[flow].begin_ns
    return [
        tuple(f"{each.track.rank} {each.name}" for each in (begins[flow], ends[flow]))
        for flow in sorted(begins)
    ]


def test_a_wait_for_a_late_rank_is_divided_and_has_an_arrow(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), opened(0), operations(0, row(1, 9, waited_ms=7)))
    write(tmp_path, 1, header(1), opened(1), operations(1, row(6, 9, waited_ms=1)))
    totals = Totals()
    events = read(tmp_path, totals)
    assert events[:2] == [Process(0, "host0", 100), Process(1, "host1", 101)]
    assert slices(events, 0, "operation") == [("all_reduce", 1, 9)]
    assert slices(events, 0, "wait") == [
        ("wait for all_reduce", 2, 9),
        ("rank 1 has not posted", 2, 6),
        ("transfer", 6, 9),
    ]
    assert slices(events, 1, "wait") == [("wait for all_reduce", 8, 9)]
    assert arrows(events) == [("1 all_reduce", "0 transfer")]
    assert totals == Totals(ranks=2, operations=2, arrows=1)
    operation = next(each for each in events if isinstance(each, Slice))
    assert operation.track == Track(1, "group 0 (ranks 0-1)")
    assert operation.arguments == {
        "bytes": 4096,
        "sequence": 0,
        "group": GROUP,
        "plan": "direct",
        "rails": "0",
        "queued_ns": 1000,
    }


def test_a_wait_that_began_after_the_last_post_has_no_arrow(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), opened(0), operations(0, row(1, 9, waited_ms=2)))
    write(tmp_path, 1, header(1), opened(1), operations(1, row(6, 9)))
    events = read(tmp_path)
    assert slices(events, 0, "wait") == [("wait for all_reduce", 7, 9)]
    assert arrows(events) == []


def test_operations_of_rooted_collectives_and_failed_ones_have_no_arrow(tmp_path: Path) -> None:
    rows = [
        row(1, 9, waited_ms=7, sequence=0, collective=BROADCAST),
        row(11, 19, waited_ms=7, sequence=1, failed=1),
    ]
    late = [row(6, 9, sequence=0, collective=BROADCAST), row(16, 19, sequence=1)]
    write(tmp_path, 0, header(0), opened(0), operations(0, *rows))
    write(tmp_path, 1, header(1), opened(1), operations(1, *late))
    totals = Totals()
    assert arrows(read(tmp_path, totals)) == []
    assert totals == Totals(ranks=2, operations=4)


def test_the_receiver_of_a_message_waits_for_its_sender(tmp_path: Path) -> None:
    get = row(1, 9, waited_ms=8, collective=MESSAGE, receives=1, peer=1, tag=3)
    put = row(5, 8, collective=MESSAGE, peer=0, tag=3)
    write(tmp_path, 0, header(0), opened(0), operations(0, get))
    write(tmp_path, 1, header(1), opened(1), operations(1, put))
    events = read(tmp_path)
    assert slices(events, 1, "operation") == [("send", 5, 8)]
    assert arrows(events) == [("1 send", "0 transfer")]
    tracks = {each.track.name for each in events if isinstance(each, Slice)}
    assert tracks == {"group 0 (ranks 0-1), messages", "waits, group 0 (ranks 0-1)"}


def test_an_operation_without_the_other_rank_s_record_is_drawn_and_counted(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), opened(0), operations(0, row(1, 9, waited_ms=7)))
    write(tmp_path, 1, header(1), opened(1))
    totals = Totals()
    events = read(tmp_path, totals)
    assert slices(events, 0, "operation") == [("all_reduce", 1, 9)]
    assert totals == Totals(ranks=2, operations=1, alone=1)


def test_operations_that_overlap_get_lanes_of_their_own(tmp_path: Path) -> None:
    rows = [row(1, 4, sequence=0), row(2, 6, sequence=1), row(5, 8, sequence=2)]
    write(tmp_path, 0, header(0), opened(0, ranks=1), operations(0, *rows))
    events = read(tmp_path)
    assert [each.track.lane for each in events if isinstance(each, Slice)] == [0, 1, 0]


def test_times_of_another_host_are_brought_to_the_first_one_s_clock(tmp_path: Path) -> None:
    # The second host's monotonic clock is 3 ms ahead.
    write(tmp_path, 0, header(0, clock="a"), opened(0), operations(0, row(1, 9, waited_ms=8)))
    write(tmp_path, 1, header(1, clock="b"), opened(1), operations(1, row(8, 12)))
    write(tmp_path, 0, clock_offset(0, 1, offset_ms=3, error_ms=0.5))
    events = read(tmp_path)
    assert slices(events, 1, "operation") == [("all_reduce", 5, 9)]
    assert arrows(events) == [("1 all_reduce", "0 transfer")]


def test_an_arrow_needs_more_than_the_error_of_the_clocks(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0, clock="a"), opened(0), operations(0, row(1, 9, waited_ms=8)))
    write(tmp_path, 1, header(1, clock="b"), opened(1), operations(1, row(8, 12)))
    write(tmp_path, 0, clock_offset(0, 1, offset_ms=3, error_ms=5))
    assert arrows(read(tmp_path)) == []


def test_clocks_by_which_an_operation_ends_before_a_post_are_counted(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), opened(0), operations(0, row(1, 9, waited_ms=8)))
    write(tmp_path, 1, header(1), opened(1), operations(1, row(10, 12)))
    totals = Totals()
    assert arrows(read(tmp_path, totals)) == []
    assert totals.contradictions == 1


def test_a_training_step_has_its_phases_and_its_gradients(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), step(0, 0, 100, 100), step(0, 1, 199, 100))
    events = read(tmp_path)
    assert slices(events, 0, "training") == [
        ("training step 0", 0, 100),
        ("step", 0, 10),
        ("forward", 10, 40),
        ("backward", 40, 100),
        ("training step 1", 100, 199),  # begins with the end of the first one, by its own clock
        ("step", 100, 109),
        ("forward", 109, 139),
        ("backward", 139, 199),
    ]
    assert slices(events, 0, "gradients") == [
        ("from parameter 12", 50, 75),
        ("from parameter 12", 149, 174),
    ]


def test_a_step_whose_hidden_time_is_unknown_states_none(tmp_path: Path) -> None:
    unknown = replace(step(0, 1, 200, 100), hidden_ns=None)
    write(tmp_path, 0, header(0), step(0, 0, 100, 100), unknown)
    known, bare = (
        each.arguments
        for each in read(tmp_path)
        if isinstance(each, Slice) and each.name.startswith("training step")
    )
    assert known["hidden_ns"] == MS
    assert "hidden_ns" not in bare


def test_a_pipeline_s_messages_join_the_instructions(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), pipeline(0, {"0F0": (0, 10), "0BW0": (45, 60)}, {"1BW0": 41}))
    write(tmp_path, 1, header(1), pipeline(1, {"1F0": (15, 25), "1BW0": (25, 40)}, {"0F0": 12}))
    events = read(tmp_path)
    assert slices(events, 1, "pipeline") == [
        ("pipeline step 0", 0, 100),
        ("1F0", 15, 25),
        ("1BW0", 25, 40),
    ]
    assert slices(events, 1, "message") == [("0F0", 10, 12)]
    assert sorted(arrows(events)) == [
        ("0 0F0", "1 0F0"),
        ("0 1BW0", "0 0BW0"),
        ("1 0F0", "1 1F0"),
        ("1 1BW0", "0 1BW0"),
    ]


def test_an_arrival_of_replicas_is_an_instant(tmp_path: Path) -> None:
    for rank, arrivals in ((0, {}), (1, {"0F0": 12.0}), (2, {})):
        spans = {"1F0": (15.0, 25.0)} if rank == 1 else {"0F0": (0.0, 10.0)}
        write(tmp_path, rank, header(rank), pipeline(rank, spans, arrivals))
    (arrival,) = (each for each in read(tmp_path) if isinstance(each, Instant))
    assert (arrival.name, arrival.time_ns) == ("0F0", UNIX + 12 * MS)
    assert arrival.track == Track(1, "arrivals")


def test_a_link_has_counters(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), link(0, 1, 1000, 25_000_000))
    samples = [each for each in read(tmp_path) if isinstance(each, Sample)]
    name = "to rank 1, rail 0: "
    assert samples == [
        Sample(Track(0, name + "rate out", unit="bit/s"), UNIX, 200_000_000),
        Sample(Track(0, name + "rate in", unit="bit/s"), UNIX, 400_000_000),
        Sample(Track(0, name + "round trip", unit="ns"), UNIX + 1000 * MS, 200_000),
        Sample(Track(0, name + "queued", unit="bytes"), UNIX + 1000 * MS, 77),
    ]


def test_verdicts_decisions_and_gaps_are_instants(tmp_path: Path) -> None:
    verdict = LinkVerdict(
        rank=0,
        time_ns=UNIX + 2,
        at_ns=1,
        since_ns=1,
        condition="slow",
        source=0,
        target=1,
        over_ns=5,
        reason="31 ms over its usual 200 us",
    )
    decision = Decision(rank=0, time_ns=UNIX + 3, subject="plan", choice="ring", reason="measured")
    gap = Gap(rank=0, time_ns=UNIX + 4, lost=7, reason="disk full")
    write(tmp_path, 0, header(0), verdict, decision, gap)
    told = [
        (each.track.name, each.name, each.time_ns - UNIX, each.arguments["reason"])
        for each in read(tmp_path)
        if isinstance(each, Instant)
    ]
    assert told == [
        ("verdicts", "link 0>1 slow", 2, "31 ms over its usual 200 us"),
        ("decisions", "plan: ring", 3, "measured"),
        ("gaps", "7 records missing", 4, "disk full"),
    ]


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (row(1, 2, collective=99), "99 is not a valid Collective"),
        (row(1, 2, plan=200), "200 is not the number of a plan of all_reduce"),
    ],
)
def test_an_operation_of_no_known_kind_is_told_with_file_and_line(
    tmp_path: Path, wrong: list[int], problem: str
) -> None:
    write(tmp_path, 0, header(0), opened(0), operations(0, wrong))
    write(tmp_path, 1, header(1), opened(1))
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    assert str(caught.value) == f"{file_of(tmp_path, 0)}:3: the record is damaged: {problem}"


def test_a_pipeline_step_that_lacks_times_is_told_with_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), pipeline(0, {"0F0": (0, 10)}))
    text = file_of(tmp_path, 0).read_text().replace('"end_ns":[10000000]', '"end_ns":[]')
    file_of(tmp_path, 0).write_text(text)
    with pytest.raises(UsageError, match=r":2: the record is damaged: the times of its 1 instr"):
        read(tmp_path)


def test_a_step_that_lacks_times_of_its_groups_is_told_with_file_and_line(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), step(0, 0, 100, 100))
    text = file_of(tmp_path, 0).read_text().replace('"group_late_ns":[0]', '"group_late_ns":[]')
    file_of(tmp_path, 0).write_text(text)
    told = r":2: the record is damaged: the fields of its 1 groups have other lengths"
    with pytest.raises(UsageError, match=told):
        read(tmp_path)


def test_the_batches_of_operations_without_rows_change_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0, header(0), Operations(rank=0, lost=0, rows=()))
    assert read(tmp_path) == [Process(0, "host0", 100)]
