"""Tests of the progress line and the table, made from files that ranks write."""

import re
from dataclasses import replace
from pathlib import Path

import made_records
import pytest
from made_records import START_NS, link
from rich.console import Console

from slackline.records import (
    Counters,
    Gap,
    GroupOpened,
    LinkVerdict,
    Operations,
    PipelineStep,
    StepSummary,
    Writer,
    file_of,
)
from slackline.views import summary_of
from slackline.views.terminal import Report


def _step(rank: int, number: int, *, wall_ns: int = 20_000_000, optimizer: int = 0) -> StepSummary:
    return made_records.step(
        rank,
        number,
        optimizer=optimizer,
        wall_ns=wall_ns,
        exposed_ns=1_000_000,
        reduced_bytes=600_000,
    )


def _fact(report: Report, name: str) -> str:
    """Return a line of the run's summary as `slackline run` shows it at the end."""
    console = Console(width=400)
    with console.capture() as capture:
        console.print(report.summary())
    rows = [line.split("│") for line in capture.get().splitlines() if "│" in line]
    facts = {row[1].strip(): row[2].strip() for row in rows}
    assert facts == {line.name: line.text for line in summary_of(report.watch)}
    return facts[name]


def _text(report: Report) -> str:
    console = Console(width=100)
    with console.capture() as capture:
        console.print(report.table())
    return capture.get()


def test_a_row_per_rank(tmp_path: Path) -> None:
    for rank in range(2):
        with Writer(tmp_path, rank) as writer:
            for number in range(10):
                writer.write(_step(rank, number))
            counted = {"shm_frames_sent": 7, "tcp_frames_sent": 0, "sleeps": 1}
            writer.write(Counters(rank=rank, time_ns=0, values=counted))
    report = Report(tmp_path, ranks=2)
    report.update()
    rows = [line.split("│") for line in _text(report).splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[1:-1]] for row in rows] == [
        ["0", "10", "50", "5.72 MiB", "1 ms", "5%", "shm"],
        ["1", "10", "50", "5.72 MiB", "1 ms", "5%", "shm"],
    ]


def _operations(*rails: int) -> Operations:
    """Return a batch of one all_reduce for each bit mask of rails."""
    rows = [[5, 0, -1, 64, 3, 1, -1, k, 0, 1, mask, 1, 2, 3, 0, 0] for k, mask in enumerate(rails)]
    return made_records.operations(0, *rows)


@pytest.mark.parametrize(
    ("rails", "kinds"),
    [
        ((1 << 31,), "shm"),
        ((0, 0b10), "udp"),
        ((1 << 31, 0b01), "shm+tcp"),
        ((0,), "-"),
        ((0b1000,), "-"),
    ],
    ids=["shared memory", "a wire", "both", "an operation that sent nothing", "an unknown rail"],
)
def test_a_rank_that_died_has_the_rails_of_its_operations(
    tmp_path: Path, rails: tuple[int, ...], kinds: str
) -> None:
    with Writer(tmp_path, 0) as writer:
        writer.write(_step(0, 0))
        writer.write(link(0, 1, 1, rail=0, kind="tcp"))
        writer.write(link(0, 1, 1, rail=1, kind="udp"))
        writer.write(_operations(*rails))
    report = Report(tmp_path, ranks=1)
    report.update()
    (row,) = [line.split("│") for line in _text(report).splitlines() if line.startswith("│")]
    assert row[-2].strip() == kinds


def test_optimizers_side_by_side_take_the_same_steps(tmp_path: Path) -> None:
    with Writer(tmp_path, 0) as writer:
        for number in range(10):
            writer.write(_step(0, number, optimizer=0))
            writer.write(_step(0, number, optimizer=1, wall_ns=20_000_001))
            if number % 2:
                writer.write(_step(0, number // 2, optimizer=2, wall_ns=40_000_000))
    report = Report(tmp_path, ranks=1)
    report.update()
    rows = [line.split("│") for line in _text(report).splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in row[1:-1]] for row in rows] == [
        ["0", "10", "50", "14.3 MiB", "2.5 ms", "12.5%", "-"],
    ]
    assert report.progress() == (
        "1 rank, 0:00:00: step 10, 50 steps/s, 2.5 ms exposed a step (12.5%)"
    )


def test_a_pipeline_has_a_row_per_rank_too(tmp_path: Path) -> None:
    with Writer(tmp_path, 0) as writer:
        for number in range(4):
            writer.write(
                PipelineStep(
                    rank=0,
                    step=number,
                    time_ns=0,
                    wall_ns=100_000_000,
                    computing_ns=70_000_000,
                    waiting_ns=25_000_000,
                    plan="auto",
                    policy="auto",
                    change="link 0-1 has 30 ms" if number == 2 else "",
                )
            )
    report = Report(tmp_path, ranks=2)
    report.update()
    assert report.table() is None
    console = Console(width=100)
    with console.capture() as capture:
        console.print(report.pipelines())
    rows = [line.split("│") for line in capture.get().splitlines() if line.startswith("│")]
    heads = next(line for line in capture.get().splitlines() if line.startswith("┃")).split("┃")
    assert [cell.strip() for cell in heads[1:-1]] == [
        *("rank", "steps", "step time", "computing", "waiting", "share", "changed", "plan"),
    ]
    assert [[cell.strip() for cell in row[1:-1]] for row in rows] == [
        ["0", "4", "100 ms", "70 ms", "25 ms", "25%", "1", "auto"],
        ["1", "0", "", "", "", "", "", ""],
    ]
    assert report.progress() == "2 ranks, 0:00:00: running", "rank 1 has taken no step"


def test_a_pause_between_steps_does_not_count(tmp_path: Path) -> None:
    with Writer(tmp_path, 0) as writer:
        for number in range(5):
            writer.write(_step(0, number, wall_ns=9_000_000_000 if number == 3 else 20_000_000))
    report = Report(tmp_path, ranks=1)
    report.update()
    assert " 50 " in _text(report)


def test_progress_grows_with_the_files(tmp_path: Path) -> None:
    report = Report(tmp_path, ranks=1)
    report.update()
    assert report.progress() == "1 rank, 0:00:00: running"
    with Writer(tmp_path, 0) as writer:
        writer.write(_step(0, 0))
    report.update()
    assert report.progress() == ("1 rank, 0:00:00: step 1, 50 steps/s, 1 ms exposed a step (5%)")


def test_without_steps_there_is_no_table(tmp_path: Path) -> None:
    report = Report(tmp_path, ranks=4)
    report.update()
    assert report.table() is None


def test_a_rank_that_wrote_nothing_has_an_empty_row(tmp_path: Path) -> None:
    with Writer(tmp_path, 0) as writer:
        writer.write(_step(0, 0))
    report = Report(tmp_path, ranks=2)
    report.update()
    assert len([line for line in _text(report).splitlines() if line.startswith("│")]) == 2


def test_half_a_line_waits_and_rubbish_is_skipped(tmp_path: Path) -> None:
    with Writer(tmp_path, 0) as writer:
        writer.write(_step(0, 0))
    path = file_of(tmp_path, 0)
    line = path.read_bytes()
    path.write_bytes(b"rubbish\n\xff\n" + line[:20])
    report = Report(tmp_path, ranks=1)
    report.update()
    assert report.ranks[0].step_count == 0
    with path.open("ab") as file:
        file.write(line[20:])
    report.update()
    assert list(report.ranks[0].steps) == [_step(0, 0)]


def _verdict(rank: int, condition: str, at_ns: int) -> LinkVerdict:
    return LinkVerdict(
        rank=rank,
        time_ns=0,
        at_ns=at_ns,
        since_ns=at_ns,
        condition=condition,
        source=0,
        target=1,
        over_ns=30_000_000 if condition == "slow" else 0,
        reason=f"link 0>1 is {condition}",
    )


def test_verdicts_of_all_ranks_are_told_once_and_summed_up(tmp_path: Path) -> None:
    report = Report(tmp_path, ranks=2)
    assert report.news() == []
    for rank in range(2):
        with Writer(tmp_path, rank) as writer:
            writer.write(_verdict(rank, "slow", 12_400_000_000))
    report.update()
    assert report.news(ended=True) == ["link 0>1 is slow"]
    with Writer(tmp_path, 0) as writer:
        writer.write(_verdict(0, "back", 15_400_000_000))
    report.update()
    assert report.news(ended=True) == ["link 0>1 is back"]
    assert _fact(report, "disturbed") == "link 0>1 slow 3 s"


def test_the_first_link_of_a_cut_nic_is_told_at_once_then_the_cause_and_its_end(
    tmp_path: Path,
) -> None:
    second = 1_000_000_000
    others = {rank: [peer for peer in range(4) if peer != rank] for rank in range(4)}
    for rank in range(4):
        opened = GroupOpened(rank=rank, time_ns=START_NS, size=4, epoch=7, members=(0, 1, 2, 3))
        made_records.write(tmp_path, rank, made_records.header(rank), opened)
    now_ns = START_NS
    report = Report(tmp_path, ranks=4, unix=lambda: now_ns)
    told: list[tuple[float, str]] = []
    for quarter in range(4 * 40):
        now_ns = START_NS + quarter * second // 4
        at_ns = now_ns - START_NS
        for rank in range(4):
            if quarter % 4 == 0:
                made_records.write(tmp_path, rank, *(link(rank, x, at_ns) for x in others[rank]))
            condition = {80: "silent", 100: "back"}.get(quarter)
            for peer in others[rank] if condition else ():
                if 2 in (rank, peer):
                    changed = made_records.verdict(rank, rank, peer, at_ns, str(condition))
                    made_records.write(tmp_path, rank, changed)
        report.update()
        told += [(at_ns / second, line) for line in report.news()]
    # Verdicts about silent rails wait 50 ms for those of other ranks.
    assert told[0] == (20.25, "link 0>2 is silent")
    assert [line for _, line in told[1:]] + report.news(ended=True) == [
        "cause: NIC 0 of host host2: all 3 links in use over it are silent, and links between "
        "other hosts are not",
        "over: NIC 0 of host host2 is as usual again after 5 s",
    ]


def test_a_rail_that_flaps_is_summed_up_once_for_both_directions(tmp_path: Path) -> None:
    def told(rank: int, condition: str, at_ns: int) -> LinkVerdict:
        peer = 1 - rank
        return LinkVerdict(
            rank=rank,
            time_ns=at_ns,
            at_ns=at_ns,
            since_ns=at_ns,
            condition=condition,
            source=rank,
            target=peer,
            rail=1,
            reason=f"link {rank}-{peer} is {condition} for the time {at_ns // 1_000_000_000}",
        )

    for rank in range(2):
        with Writer(tmp_path, rank) as writer:
            for number in range(4):
                start_ns = (10 + 5 * number) * 1_000_000_000
                writer.write(told(rank, "silent", start_ns))
                writer.write(told(rank, "back", start_ns + 500_000_000))
    report = Report(tmp_path, ranks=2)
    report.update()
    assert _fact(report, "disturbed") == "link 0-1 silent 4 times, 2 s"


def test_a_cause_other_than_a_link_is_told_once_when_it_is_certain(tmp_path: Path) -> None:
    for rank in range(3):
        with Writer(tmp_path, rank) as writer:
            for number in range(30):
                passes_ns = 60_000_000 if rank == 1 and number >= 20 else 20_000_000
                step = _step(rank, number, wall_ns=passes_ns)
                changes = {"time_ns": number * 100_000_000, "backward_ns": passes_ns}
                writer.write(replace(step, **changes))
    now_ns = [3_000_000_000]
    report = Report(tmp_path, ranks=3, unix=lambda: now_ns[0])
    report.update()
    assert report.news() == []
    told = []
    for _ in range(20):
        now_ns[0] += 100_000_000
        report.update()
        told.append(report.news())
    assert [line for lines in told for line in lines] == [
        "cause: rank 1: it computes 40 ms a step longer than its usual 20 ms; "
        "most other ranks compute as usual"
    ]
    assert told.index([line for lines in told for line in lines]) in range(9, 13)


def test_the_end_of_a_cause_is_told_and_its_times_are_summed_up(
    tmp_path: Path,
) -> None:
    now_ns = [0]
    report = Report(tmp_path, ranks=3, unix=lambda: now_ns[0])
    told: list[str] = []
    writers = [Writer(tmp_path, rank) for rank in range(3)]
    for rank, writer in enumerate(writers):
        writer.write(GroupOpened(rank=rank, time_ns=1_000_000_000, size=3))
    for number in range(120):
        for rank, writer in enumerate(writers):
            slow = rank == 1 and (20 <= number < 40 or number >= 90)
            passes_ns = 60_000_000 if slow else 20_000_000
            step = _step(rank, number, wall_ns=passes_ns)
            writer.write(replace(step, time_ns=number * 200_000_000, backward_ns=passes_ns))
            writer.flush()
        now_ns[0] += 250_000_000
        report.update()
        told += report.news()
    for writer in writers:
        writer.close()
    sentence = (
        "rank 1: it computes 40 ms a step longer than its usual 20 ms; most other ranks compute "
        "as usual"
    )
    over = "over: rank 1 is as usual again after "
    assert [line[: len(over)] if line.startswith(over) else line for line in told] == [
        f"cause: {sentence}",
        over,
        f"cause: {sentence}",
    ]
    slow = _fact(report, "slow")
    assert re.fullmatch(r"rank 1 \(2 times, \d+\.\d+ s, then to the end\)", slow)


def test_a_job_without_a_cause_says_so(tmp_path: Path) -> None:
    report = Report(tmp_path, ranks=1)
    report.news(ended=True)
    assert _fact(report, "job") == "no rank has written a record yet"
    with Writer(tmp_path, 0) as writer:
        writer.write(_step(0, 0))
    report.update()
    assert _fact(report, "slow") == "no cause of slow steps"


def test_what_the_telemetry_lacks_is_named_with_file_and_line(tmp_path: Path) -> None:
    with Writer(tmp_path, 0) as writer:
        writer.write(_step(0, 0))
        writer.write(Gap(rank=0, time_ns=0, lost=7, reason="No space left on device"))
    path = file_of(tmp_path, 0)
    with path.open("a") as file:
        file.write('{"record":"st\n{"rec')
    report = Report(tmp_path, ranks=1)
    report.update()
    assert len(report.ranks[0].steps) == 1
    assert report.problems() == [
        f"{path}:4: the line is cut or damaged: the record is not JSON, Unterminated string "
        'starting at: line 1 column 11 (char 10): \'{"record":"st\'',
        "rank 0: 7 records missing: No space left on device",
        f"{path}: the last line is cut",
    ]
