"""Tests of the sentences of `slackline why` about slow steps of written telemetry."""

import json
from pathlib import Path

import pytest
from made_records import MS_NS as MS
from made_records import START_NS, header, step, write

from slackline.cli import main
from slackline.records import file_of


def _write(
    directory: Path, *, slow: int | None, steps: int = 60, times: tuple[range, ...] | None = None
) -> None:
    """Write steps of four ranks; rank `slow` computes longer in `times`, or from step 30 on."""
    slow_steps = (range(30, steps),) if times is None else times
    for rank in range(4):
        write(directory, rank, header(rank))
        for number in range(steps):
            longer = rank == slow and any(number in each for each in slow_steps)
            passes_ns = 180 * MS if longer else 100 * MS
            changes = {
                "time_ns": START_NS + number * 200 * MS,
                "wall_ns": passes_ns + 5 * MS,
                "exposed_ns": 0,
                "waited": 0,
                "forward_ns": passes_ns // 2,
                "backward_ns": passes_ns // 2,
            }
            write(directory, rank, step(rank, number, **changes))


def _told(directory: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the sentences about slow steps and the notes."""
    assert main(["why", str(directory)]) == 0
    lines = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    return [line for line in lines if line.startswith(("Slow", "note"))]


def test_the_cause_is_printed_with_its_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    telemetry = kept / "telemetry"
    telemetry.mkdir(parents=True)
    _write(telemetry, slow=2)
    assert _told(kept, capsys) == [
        "Slow steps, since 5.8 s (named at 7.8 s): rank 2: it computes 80 ms a step longer than "
        "its usual 100 ms; most other ranks compute as usual."
    ]
    assert main(["why", "--json", str(kept)]) == 0
    found = json.loads(capsys.readouterr().out)
    (cause,) = found["causes"]
    assert (cause["kind"], cause["ranks"], cause["rail"]) == ("rank", [2], None)
    assert cause["since_ns"] == START_NS + 5_815 * MS
    assert cause["until_ns"] is None
    assert cause["look_at"].startswith("the rank's work in a step")
    assert found["problems"] == []


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((range(30, 60),), "from 5.8 s to 13.2 s (named at 7.8 s)"),
        (
            (range(30, 60), range(90, 120)),
            "2 times from 5.8 s on, 14.9 s in all (named at 7.8 s)",
        ),
        (
            (range(30, 60), range(90, 150)),
            "2 times from 5.8 s on, 7.43 s, then to the end (named at 7.8 s)",
        ),
    ],
    ids=["once", "twice", "twice, then to the end"],
)
def test_a_cause_that_is_over_has_its_end_and_one_that_came_twice_has_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], times: tuple[range, ...], said: str
) -> None:
    _write(tmp_path, slow=2, steps=150, times=times)
    assert _told(tmp_path, capsys) == [
        f"Slow steps, {said}: rank 2: it computes 80 ms a step longer than its "
        "usual 100 ms; most other ranks compute as usual."
    ]


def test_a_run_as_usual_has_no_cause_and_a_damaged_line_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write(tmp_path, slow=None)
    with file_of(tmp_path, 3).open("a") as file:
        file.write("rubbish\n")
    assert _told(tmp_path, capsys) == [
        f"note: {file_of(tmp_path, 3)}:62: the line is cut or damaged: the record is not JSON, "
        "Expecting value: line 1 column 1 (char 0): 'rubbish'"
    ]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "{} has no report and no telemetry of any rank"),
        ("missing", "there is no directory {}"),
    ],
)
def test_a_directory_without_telemetry_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, sentence: str
) -> None:
    directory = tmp_path / name
    assert main(["why", str(directory)]) == 2
    expected = f"slackline: {sentence.format(repr(str(directory)))}\n"
    assert capsys.readouterr().err == expected
