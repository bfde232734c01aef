"""Tests that records are read back unchanged from a file, and that readers skip unknown ones."""

import json

import pytest

from slackline.errors import UsageError
from slackline.history import decode, read_directory, read_file
from slackline.records import (
    ClockOffset,
    Counters,
    Decision,
    DeviceReport,
    Gap,
    GroupOpened,
    LinkReport,
    LinkVerdict,
    Operation,
    Operations,
    Promise,
    RunSummary,
    Setting,
    StepSummary,
    Writer,
    encode,
    file_of,
    summarize,
)

STEP = StepSummary(
    rank=1,
    step=3,
    time_ns=10**18,
    wall_ns=5_000_000,
    exposed_ns=1_000_000,
    reduced_bytes=4096,
    parameters=2,
    waited=1,
)
ROW = (10, 1, 2, 4096, 1, 7, 3, 5, 0, 0, 1 << 31 | 2, 100, 110, 190, 60, 0)
RECORDS = (
    STEP,
    Operations(rank=1, lost=2, rows=(Operation(*ROW),) * 2),
    Gap(rank=1, time_ns=10**18, lost=3, reason="No space left on device"),
    ClockOffset(rank=1, peer=0, at_ns=5, offset_ns=-7, error_ns=2),
    Decision(rank=1, time_ns=10**18, subject="plan", choice="ring", reason="the fastest"),
    Setting(rank=1, time_ns=10**18, name="plan", value="ring", origin="environment"),
    LinkReport(
        rank=1,
        peer=0,
        rail=0,
        kind="tcp",
        at_ns=9,
        interval_ns=4,
        sent_bytes=100,
        received_bytes=50,
        packets=3,
        resent=1,
        round_trip_ns=200,
        queued_bytes=0,
        unconfirmed_bytes=10,
        state="up",
        outward="link 1>0 is well",
        inward="link 0>1 is well",
    ),
    GroupOpened(rank=1, time_ns=10**18, size=4),
    Counters(rank=1, time_ns=10**18, values={"frames": 7}),
    RunSummary(rank=1, steps=2, wall_ns=4, exposed_ns=1, reduced_bytes=8, rails=("shm", "tcp")),
    DeviceReport.of(1, 10**18, "circuit", {"cycles": 9, "busy": 3, "adder": 1, "accepted": 2}),
    Promise(rank=1, time_ns=10**18, source="groups", choice="groups of 1024 KiB", wall_ns=9_000),
    LinkVerdict(
        rank=1,
        time_ns=10**18,
        at_ns=20_400_000_000,
        since_ns=20_100_000_000,
        condition="slow",
        source=2,
        target=3,
        over_ns=30_000_000,
        reason="link 2>3 is slow since 20.1 s: 30 ms over its usual 0.1 ms",
    ),
)


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_is_the_same_after_a_round_trip(record):
    assert decode(encode(record)) == record


def test_a_line_names_its_kind_first():
    assert encode(STEP).startswith('{"record":"step","rank":1,"step":3,')


def test_an_unknown_key_is_skipped():
    line = json.dumps({**json.loads(encode(STEP)), "news": 1})
    assert decode(line) == STEP


def test_the_operations_of_a_batch_have_names_for_their_codes():
    (first, second) = RECORDS[1].rows
    assert first == second == Operation(*ROW)
    assert (first.kind, first.plan_name, first.rail_names) == ("recv", "", ("1", "shm"))
    ring = Operation(*(1, 0, -1, *ROW[3:9], 3, 1, *ROW[11:]))
    assert (ring.kind, ring.plan_name, ring.rail_names) == ("all_reduce", "ring", ("0",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": ["weather"]}, 'the columns of "operations" must be collective, receives, '),
        ({"rows": 3}, 'the record "operations": rows must be a list, not 3'),
        (
            {"rows": [ROW, [1, 2]]},
            'the record "operations": rows[1] must be a list of length 16, not [1, 2]',
        ),
        (
            {"rows": [[*ROW[:15], "no"]]},
            "the record \"operations\": rows[0][15] must be an integer, not 'no'",
        ),
    ],
)
def test_wrong_operations_are_named(changes, message):
    line = json.dumps({**json.loads(encode(RECORDS[1])), **changes})
    with pytest.raises(UsageError) as caught:
        decode(line)
    assert message in str(caught.value)


def test_an_unknown_kind_is_no_record():
    assert decode('{"record":"weather","rank":0}') is None


def test_a_missing_field_is_named():
    given = json.loads(encode(STEP))
    del given["wall_ns"]
    with pytest.raises(UsageError) as caught:
        decode(json.dumps(given))
    assert str(caught.value) == 'the record "step": it lacks the key "wall_ns"'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "nonsense",
            "the record is not JSON, Expecting value: line 1 column 1 (char 0): 'nonsense'",
        ),
        ("[1]", "the record: it must be an object, not [1]"),
        ("{}", 'the record: it lacks the key "record"'),
        ('{"record":"gap","rank":"x"}', "the record \"gap\": rank must be an integer, not 'x'"),
        (
            '{"record":"counters","rank":0,"time_ns":1,"values":{"frames":1.5}}',
            'the record "counters": values[...] must be an integer',
        ),
    ],
)
def test_a_line_that_is_no_record_is_shown(line, message):
    with pytest.raises(UsageError) as caught:
        decode(line)
    assert str(caught.value) == message


def test_what_is_written_is_read_in_order(tmp_path):
    with Writer(tmp_path / "deep" / "down", 1) as writer:
        for record in RECORDS:
            writer.write(record)
        assert writer.flush()
        assert tuple(read_file(file_of(tmp_path / "deep" / "down", 1))) == RECORDS


def test_a_second_writer_appends(tmp_path):
    for _ in range(2):
        with Writer(tmp_path, 1) as writer:
            writer.write(STEP)
    assert list(read_directory(tmp_path)) == [STEP, STEP]


def test_a_closed_writer_writes_no_more(tmp_path):
    writer = Writer(tmp_path, 1)
    writer.close()
    writer.close()
    writer.write(STEP)
    assert list(read_directory(tmp_path)) == []


def test_a_line_cut_short_by_a_crash_is_skipped(tmp_path):
    with Writer(tmp_path, 1) as writer:
        writer.write(STEP)
    with file_of(tmp_path, 1).open("a") as file:
        file.write('{"record":"step","ra')
    assert list(read_directory(tmp_path)) == [STEP]


def step(**changes):
    return StepSummary(**{**vars(STEP), **changes})


def test_a_run_adds_up_its_rank_only():
    steps = [step(step=0, hidden_ns=7), step(step=1, exposed_ns=0), step(rank=0)]
    run = summarize(1, steps, ("shm",))
    assert run == RunSummary(
        rank=1,
        steps=2,
        wall_ns=10_000_000,
        exposed_ns=1_000_000,
        reduced_bytes=8192,
        rails=("shm",),
        hidden_ns=7,
        detailed_wall_ns=5_000_000,
    )
    assert run.steps_per_second == 200.0
    assert run.communication_share == 0.1


def test_several_optimizers_do_not_count_time_twice():
    steps = [step(optimizer=0), step(optimizer=1, wall_ns=6_000_000)]
    run = summarize(1, steps)
    assert (run.steps, run.wall_ns, run.exposed_ns) == (1, 6_000_000, 2_000_000)


def test_a_run_without_steps_has_no_rate():
    run = summarize(0, [])
    assert (run.steps_per_second, run.communication_share) == (0.0, 0.0)
