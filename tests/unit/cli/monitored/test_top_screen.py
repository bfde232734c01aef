"""Tests of the screen of `slackline top`: its lines in windows of any size."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import SECOND_NS, START_NS, verdict, write
from monitored_files import header, write_job

from slackline.causes import Watch
from slackline.history import Job
from slackline.records import Counters, Decision, DeviceReport, PipelineStep, process_names
from slackline.views.terminal._lines import Column, lines_of, printable
from slackline.views.terminal._render import divide, screen_of
from slackline.views.terminal._view import View, view_of

_NOW_NS = START_NS + 64 * SECOND_NS


def _view(directory: Path, now_ns: int = _NOW_NS) -> View:
    watch = Watch(Job(directory))
    watch.update(now_ns)
    return view_of(watch, now_ns)


def _plain(view: View, width: int, height: int | None = None) -> list[str]:
    return [line.plain for line in screen_of(view, width, height)]


def test_a_wide_screen_shows_everything(tmp_path: Path) -> None:
    write_job(tmp_path)
    assert _plain(_view(tmp_path), 120) == [
        "3 ranks on 3 hosts, 0:01:04, step 4, 1 direction disturbed",
        "",
        "rank  host   state    step  steps/s  exposed  share  operations",
        "   0  host0  running     4       50     5 ms    25%           2",
        "   1  host1  running     4       50     5 ms    25%           2",
        "   2  host2  running     4       50     5 ms    25%           2",
        "",
        "link  rail  kind  state        rate  round trip  condition",
        "0>1      0  tcp   slow   100 Mbit/s     31.4 ms  "
        "link 0>1 is slow since 1.0 s: 31 ms over its usual 200 us",
        "0>2      0  tcp          100 Mbit/s      400 us  "
        "link 0>2 is well: 200 us one way as usual",
        "1>0      0  tcp          100 Mbit/s      400 us  "
        "link 1>0 is well: 200 us one way as usual",
        "1>2      0  tcp          100 Mbit/s      400 us  "
        "link 1>2 is well: 200 us one way as usual",
        "2>0      0  tcp          100 Mbit/s      400 us  "
        "link 2>0 is well: 200 us one way as usual",
        "2>1      0  tcp          100 Mbit/s      400 us  "
        "link 2>1 is well: 200 us one way as usual",
        "",
        "     at  finding",
        "0:00:02  link 0>1 is slow since 1.0 s: 31 ms over its usual 200 us",
        "",
        "     at  ranks  decision  choice and reason",
        "0:01:01      0  plan      ring from 64KiB: measured 1.2 ms",
    ]


def test_devices_have_a_table_with_their_cycles(tmp_path: Path) -> None:
    write_job(tmp_path)
    counters = {"cycles": 90000, "busy": 27000, "no_peer_data": 54000, "accepted": 12}
    write(tmp_path, 1, DeviceReport.of(1, START_NS, "circuit", counters))
    write(tmp_path, 2, DeviceReport.of(2, START_NS, "twin", {"accepted": 11}))
    lines = _plain(_view(tmp_path), 120)
    at = lines.index("rank  device   frames  cycles  share of the cycles")
    assert lines[at + 1 : at + 3] == [
        "   1  circuit      12   90000  busy 30%, no_peer_data 60%",
        "   2  twin         11       -",
    ]


def test_a_rank_whose_process_was_killed_is_gone(tmp_path: Path) -> None:
    write_job(tmp_path, ranks=2)
    killed = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    killed.kill()
    killed.communicate()
    write(tmp_path, 0, Counters(rank=0, time_ns=START_NS + 62 * SECOND_NS, values={}))
    write(tmp_path, 1, replace(header(1), process=killed.pid, processes=process_names()))
    lines = _plain(_view(tmp_path), 120)
    assert (
        lines[0] == "2 ranks on 2 hosts, 0:01:02, step 4, ended, 1 rank gone, 1 direction disturbed"
    )
    assert [line[:20].rstrip() for line in lines[3:5]] == [
        "   0  host0  ended",
        "   1  host1  gone",
    ]


def _write_silent_nic(directory: Path) -> None:
    """Write four hosts of which host 2 loses all links at 60 s; all ranks end at 62 s."""
    write_job(directory, ranks=4)
    for rank in range(4):
        for peer in range(4):
            if rank != peer and 2 in (rank, peer):
                times = {"time_ns": START_NS + 61 * SECOND_NS, "since_ns": 160 * SECOND_NS}
                silent = verdict(rank, rank, peer, 161 * SECOND_NS, "silent", **times)
                write(directory, rank, silent)
        ended = Counters(rank=rank, time_ns=START_NS + 62 * SECOND_NS, values={})
        write(directory, rank, ended)


def test_a_cause_takes_the_place_of_the_findings_about_its_links(tmp_path: Path) -> None:
    _write_silent_nic(tmp_path)
    view = _view(tmp_path)
    sentence = (
        "NIC 0 of host host2: all 3 links in use over it are silent, and links between other "
        "hosts are not"
    )
    (spell,) = view.causes
    cause = spell.cause
    assert (cause.kind, cause.name, cause.ranks) == ("nic", "NIC 0 of host host2", (2,))
    assert (cause.since_ns - START_NS, spell.until_ns) == (60 * SECOND_NS, None)
    assert [each.sentence for each in view.findings] == [
        "link 0>1 is slow since 1.0 s: 31 ms over its usual 200 us"
    ]
    lines = _plain(view, 140)
    assert lines[8:10] == [
        "  since  until  cause of slow steps",
        f"0:01:00         {sentence}",
    ]
    assert sum("is silent" in line for line in lines[10:]) == 6


def test_a_narrow_screen_leaves_columns_out(tmp_path: Path) -> None:
    write_job(tmp_path)
    lines = _plain(_view(tmp_path), 40)
    assert lines[2:4] == [
        "rank  state    step  steps/s  share",
        "   0  running     4       50    25%",
    ]
    assert lines[7:9] == [
        "link  state        rate  condition",
        "0>1   slow   100 Mbit/s  link 0>1 is sl…",
    ]
    assert max(map(len, lines)) <= 40


@pytest.mark.parametrize("width", [1, 5, 20, 33, 80, 300])
@pytest.mark.parametrize("height", [1, 2, 4, 7, 10, 24, 100])
def test_a_screen_fits_its_window(tmp_path: Path, width: int, height: int) -> None:
    write_job(tmp_path, ranks=12)
    lines = _plain(_view(tmp_path), width, height)
    assert 1 <= len(lines) <= height
    assert max(map(len, lines)) <= width


def test_a_low_screen_has_the_worst_links_and_counts_the_others(tmp_path: Path) -> None:
    write_job(tmp_path, ranks=4)
    lines = _plain(_view(tmp_path), 100, 18)
    assert len(lines) == 18
    assert lines[1:6] == [
        "",
        "rank  host   state    step  steps/s  exposed  share  operations",
        "   0  host0  running     4       50     5 ms    25%           2",
        "   1  host1  running     4       50     5 ms    25%           2",
        "   2  host2  running     4       50     5 ms    25%           2",
    ]
    assert [line[:4] for line in lines[7:11]] == ["", "link", "0>1 ", "0>2 "]
    assert lines[11:13] == ["and 10 more", ""]


def test_rows_are_divided_evenly_and_the_first_tables_come_first() -> None:
    assert divide(30, [4, 12, 1]) == [4, 12, 1]
    assert divide(17, [4, 12, 1]) == [4, 6, 1]
    assert divide(9, [4, 12, 1]) == [1, 1, 1]
    assert divide(8, [4, 12, 1]) == [2, 2, 0]
    assert divide(2, [4, 12, 1]) == [0, 0, 0]
    assert divide(-1, [4]) == [0]


def test_a_decision_of_several_ranks_is_one_row(tmp_path: Path) -> None:
    for rank in range(4):
        chosen = [
            Decision(
                rank=rank,
                time_ns=START_NS + second * SECOND_NS,
                subject=subject,
                choice="ring",
                reason="measured",
            )
            for second, subject in [(10, "plan"), (20 + rank, "shares"), (30, "plan")]
        ]
        write(tmp_path, rank, header(rank), *(chosen[:1] if rank == 1 else chosen))
    lines = _plain(_view(tmp_path), 80)
    assert lines[lines.index("     at  ranks  decision  choice and reason") + 1 :] == [
        "0:00:30  0,2-3  plan      ring: measured",
        "0:00:20  0,2-3  shares    ring: measured",
        "0:00:10    0-3  plan      ring: measured",
    ]


def test_ranks_are_silent_and_ended(tmp_path: Path) -> None:
    write_job(tmp_path, ranks=2)
    write(tmp_path, 1, Counters(rank=1, time_ns=START_NS + 61 * SECOND_NS, values={}))
    lines = _plain(_view(tmp_path, START_NS + 81 * SECOND_NS), 120)
    assert lines[0].startswith("2 ranks on 2 hosts, 0:01:21, step 4, 1 rank silent")
    assert [line[13:29].strip() for line in lines[3:5]] == ["silent for 20 s", "ended"]
    write(tmp_path, 0, Counters(rank=0, time_ns=START_NS + 62 * SECOND_NS, values={}))
    head = _plain(_view(tmp_path, START_NS + 3600 * SECOND_NS), 120)[0]
    assert head.startswith("2 ranks on 2 hosts, 0:01:02, step 4, ended")


def test_a_pipeline_s_steps_count_where_there_is_no_optimizer_s(tmp_path: Path) -> None:
    steps = [
        PipelineStep(
            rank=0,
            step=number,
            time_ns=START_NS,
            wall_ns=100_000_000,
            computing_ns=70_000_000,
            waiting_ns=25_000_000,
            plan="1f1b",
            policy="ready",
        )
        for number in range(3)
    ]
    write(tmp_path, 0, header(0), *steps)
    write(tmp_path, 1, header(1))
    lines = _plain(_view(tmp_path, START_NS), 120)
    assert [line.split() for line in lines[3:5]] == [
        ["0", "host0", "running", "3", "10", "25", "ms", "25%", "0"],
        ["1", "host1", "running", "-", "-", "-", "-", "0"],
    ]


def test_a_job_without_a_record_says_so(tmp_path: Path) -> None:
    assert _plain(_view(tmp_path), 80) == ["no rank has written a record yet"]


def test_text_of_a_file_cannot_move_the_cursor(tmp_path: Path) -> None:
    assert printable("a\x1b[2Jb\nc\u202e") == "a?[2Jb?c?"
    write(tmp_path, 0, header(0, host="h\x1b[31m"))
    assert "h?[31m" in _plain(_view(tmp_path), 80)[3]


def test_wide_characters_take_two_cells() -> None:
    columns = (Column("a"), Column("b", right=False))
    assert lines_of(columns, [("1", "主机"), ("2", "x")], 6) == ["a  b", "1  主…", "2  x"]
