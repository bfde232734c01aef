import json

import pytest
from _harness.machine import commit, describe_machine
from _harness.options import Options
from _harness.report import Report, Row, Target
from rich.table import Table

MACHINE = {"cpu": "an abacus", "cores": 1}


@pytest.mark.parametrize(
    ("bound", "measured", "met"),
    [
        ("at least", 10.0, True),
        ("at least", 9.99, False),
        ("at most", 10.0, True),
        ("at most", 10.01, False),
        ("at least", None, None),
    ],
)
def test_whether_a_target_is_met_follows_from_its_numbers(
    bound: str, measured: float | None, met: bool | None
) -> None:
    target = Target(name="a bound", target=10.0, measured=measured, bound=bound)
    assert target.met is met
    assert target.as_json()["met"] is met


def test_a_row_has_values_or_a_reason_but_not_both() -> None:
    for values, skipped in (({}, None), ({"median_us": 1.0}, "no mpirun")):
        with pytest.raises(ValueError, match=r"^a row has either values or a reason: "):
            Row(labels={"ranks": 2}, values=values, skipped=skipped)


def test_json_is_one_object_with_machine_commit_rows_and_targets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report(
        machine=MACHINE,
        commit="abc1234",
        rows=[
            Row(labels={"ranks": 2}, values={"median_us": 3.5}),
            Row(labels={"ranks": 4}, skipped="mpirun is not installed"),
        ],
        targets=[Target(name="speed", target=2.0, measured=3.0)],
    )
    report.print([Table("not in JSON")], Options(quick=True, json=True))
    assert json.loads(capsys.readouterr().out) == {
        "machine": MACHINE,
        "commit": "abc1234",
        "rows": [
            {"ranks": 2, "median_us": 3.5},
            {"ranks": 4, "skipped": "mpirun is not installed"},
        ],
        "targets": [
            {"name": "speed", "bound": "at least", "target": 2.0, "measured": 3.0, "met": True}
        ],
    }


def test_tables_name_the_machine_the_commit_and_every_target(
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets = [
        Target(name="kept", target=2.0, measured=3.0),
        Target(name="missed", target=2.0, measured=1.0),
        Target(name="left out", target=2.0, measured=None),
    ]
    report = Report(machine=MACHINE, commit="abc1234", rows=[], targets=targets)
    report.print([], Options(quick=False, json=False), notes=["a word at the end"])
    out = capsys.readouterr().out
    assert "cpu an abacus, cores 1; commit abc1234" in out
    assert "a word at the end" in out
    for name, word in (("kept", "yes"), ("missed", "NO"), ("left out", "skipped")):
        assert [word in line for line in out.splitlines() if name in line] == [True]


def test_the_machine_is_described_by_what_changes_figures() -> None:
    described = describe_machine()
    assert {"cpu", "cores", "kernel", "python", "torch", "date"} <= set(described)
    assert int(described["cores"]) >= 1
    assert commit()
