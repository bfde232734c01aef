"""Comparisons of published tables with experiments, and mistakes in either."""

import json
import re
import shutil
from pathlib import Path

import pytest

from slackline.errors import UsageError
from slackline.reproduce import Folder, compare, draw, read_table

TABLE = """
version = 1
title = "A table"
source = "a paper"
published_method = "measured"
experiment = "node.toml"
method = "model"
figure = "last_ps"
unit = "us"
"""
ROW = '[[row]]\ncase = "4000B, onset 1"\n'
NODE = """# A node.
[node]
workers = 2
rate = "10Gbit"
payload = "1000B"
overhead = "250B"
message = "4000B"
onset = [1, 0]
"""


def folder(path: Path, table: str, experiment: str = NODE) -> Folder:
    (path / "tables").mkdir()
    (path / "experiments").mkdir()
    (path / "tables" / "mine.toml").write_text(table)
    (path / "experiments" / "node.toml").write_text(experiment)
    return Folder(path)


def test_a_row_has_our_figure_in_its_unit_and_the_error(tmp_path: Path) -> None:
    text = f"""{TABLE}
        {ROW}
        published = 4
        given = true
        [[row]]
        label = "whole"
        case = "4000B, onset 0"
        published = 8
        [[row]]
        case = "4000B, onset 1"
        label = "rate"
        figure = "bits_per_second"
        unit = "Gbit/s"
        [[row]]
        label = "saved"
        case = "4000B, onset 1"
        against = "4000B, onset 0"
        [[row]]
        label = "times"
        case = "4000B, onset 1"
        against = "4000B, onset 0"
        as = "ratio"
        published = 1.6
        given = true
    """
    mine = folder(tmp_path, text)
    comparison = compare(mine.tables()[0], mine)
    assert comparison.parameters["node"]["workers"] == 2
    found = [(each.row.label, each.ours, each.row.unit) for each in comparison.rows]
    assert found == [
        ("4000B, onset 1", 5.0, "us"),
        ("whole", 8.0, "us"),
        ("rate", 6.4, "Gbit/s"),
        ("saved", 37.5, "%"),
        ("times", 1.6, "x"),
    ]
    assert [each.error for each in comparison.rows] == [0.25, 0.0, None, None, 0.0]
    assert [each.deviates for each in comparison.rows] == [True, False, False, False, False]


def test_the_error_is_that_of_the_average_with_its_standard_errors(tmp_path: Path) -> None:
    text = f"""{TABLE}
        {ROW}
        published = 4
        average = 4.5
        standard_error = 0.25
        given = true
        [[row]]
        label = "printed alone"
        case = "4000B, onset 0"
        published = 8
    """
    mine = folder(tmp_path, text)
    first, second = compare(mine.tables()[0], mine).rows
    assert (first.ours, first.error, first.standard_errors) == (5.0, pytest.approx(1 / 9), 2.0)
    assert (first.row.published, first.row.measured, second.row.measured) == (4, 4.5, 8)
    assert second.standard_errors is None


def test_a_changed_copy_of_the_packaged_folder_is_compared(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    assert Folder().save(target) == sum(each.is_file() for each in target.rglob("*"))
    assert Folder(target).names() == Folder().names()
    changed = target / "experiments" / "zero_bubble_order.toml"
    changed.write_text(changed.read_text().replace('"20ms"]', '"20ms", "30ms"]'))
    table = target / "tables" / "zero-bubble-order.toml"
    case = "zero bubble, first link 30ms"
    table.write_text(f'{table.read_text()}\n[[row]]\ncase = "{case}"\n')
    copy = Folder(target)
    last = compare(copy.tables(("zero-bubble-order",))[0], copy).rows[-1]
    assert (last.row.label, last.ours) == (case, 500.0)


def test_a_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(UsageError) as raised:
        Folder().save(tmp_path)
    assert str(raised.value) == f"{tmp_path} must be an empty directory"
    with pytest.raises(UsageError) as raised:
        Folder().save(tmp_path / "mine")
    assert str(raised.value) == f"cannot write to {tmp_path / 'mine'}: File exists"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("version = 2\n", "mine.toml: version must be 1, not 2"),
        (ROW, 'mine.toml: the file lacks "version"'),
        ("version =", "mine.toml is not TOML: Invalid value (at end of document)"),
        (TABLE, "mine.toml: the file: at least one [[row]] is needed"),
        (
            TABLE.replace('"us"', '"hours"') + ROW,
            "mine.toml: unit: must be one of us, ms, s, min, Gbit/s, frames, %, x, not 'hours'",
        ),
        (
            TABLE + ROW + "average = 4\n",
            "mine.toml: [row 0]: average and standard_error belong together: give both",
        ),
        (
            TABLE.replace('published_method = "measured"\n', "") + ROW + "published = 4\n",
            'mine.toml: the file lacks "published_method"',
        ),
        (
            f'{TABLE}plot = "lines"\n{ROW}{ROW}unit = "ms"\n',
            'mine.toml: the file: plot = "lines" needs rows of one unit, not ms, us',
        ),
        (
            TABLE.replace('"measured"', '"guessed"') + ROW,
            "mine.toml: published_method: must be one of measured, simulated, model, not 'guessed'",
        ),
        (
            TABLE.replace('"model"', '"guessed"') + ROW,
            "mine.toml: method: must be one of simulated, model, not 'guessed'",
        ),
        (
            f"{TABLE}{ROW}published = 0\n",
            "mine.toml: [row 0] published: must be a positive number, not 0",
        ),
        (
            f"{TABLE}{ROW}publisht = 1\n",
            'mine.toml: [row 0] does not take the key "publisht"; it takes '
            "case, against, label, figure, "
            "published, average, standard_error, given, unit",
        ),
        (
            f'{TABLE}speed = "high"\n{ROW}',
            'mine.toml: the file does not take the key "speed"; it takes '
            "version, title, source, experiment, "
            "method, figure, unit, explanation, plot, given, row, published_method",
        ),
        (
            TABLE.replace("node.toml", "nodes.toml") + ROW,
            "mine.toml: experiment: there is no file experiments/nodes.toml",
        ),
        (
            f'{TABLE}[[row]]\ncase = "4kB, onset 1"\n',
            'mine.toml: node.toml has no case "4kB, onset 1"; it has 4000B, onset 1; 4000B, '
            "onset 0",
        ),
        (
            f'{TABLE}{ROW}against = "onset 1"\n',
            'mine.toml: node.toml has no case "onset 1"; it has 4000B, onset 1; 4000B, onset 0',
        ),
        (
            TABLE.replace("last_ps", "latest") + ROW,
            'mine.toml: figure: "4000B, onset 1" has no number "latest"; it has first_ps, '
            "last_ps, starved_ps, bits_per_second, frames, most_buffered",
        ),
        (
            TABLE.replace("last_ps", "starved_ps") + ROW + 'against = "4000B, onset 0"\n',
            'mine.toml: starved_ps of "4000B, onset 0" is 0',
        ),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, table: str, said: str) -> None:
    mine = folder(tmp_path, table)
    with pytest.raises(UsageError) as raised:
        compare(mine.tables()[0], mine)
    assert str(raised.value) == said


def test_a_mistake_in_the_experiment_names_its_file(tmp_path: Path) -> None:
    mine = folder(tmp_path, TABLE + ROW, NODE.replace("= 2", "= 0"))
    with pytest.raises(UsageError) as raised:
        compare(mine.tables()[0], mine)
    assert str(raised.value) == "node.toml: [node]: workers must be a positive integer, not 0"


def test_an_unknown_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'^there is no table "yours"; tables are mine$'):
        folder(tmp_path, TABLE + ROW).tables(("yours",))


def test_a_folder_without_tables_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        Folder(tmp_path).tables()
    assert str(raised.value) == f"there is no folder {tmp_path / 'tables'}"


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    mine = folder(tmp_path, TABLE + ROW)
    (tmp_path / "tables" / "mine.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"^cannot read tables/mine\.toml: it is not UTF-8$"):
        mine.tables()
    shutil.rmtree(tmp_path / "experiments")
    with pytest.raises(UsageError, match=r"^there is no folder .*experiments$"):
        compare(read_table(TABLE + ROW, "mine.toml"), mine)


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_a_figure_keeps_its_numbers_and_is_equal_for_equal_numbers(
    tmp_path: Path, kind: str
) -> None:
    text = f'{TABLE}plot = "{kind}"\n{ROW}published = 4\n[[row]]\ncase = "4000B, onset 0"\n'
    mine = folder(tmp_path, text)
    comparison = compare(mine.tables()[0], mine)
    first = draw(comparison, tmp_path / "plots")
    assert first == tmp_path / "plots" / "mine.svg"
    drawn = first.read_text()
    found = re.search(r"<dc:description>(.*)</dc:description>", drawn)
    assert found is not None
    numbers = json.loads(found[1].replace("&quot;", '"'))
    assert numbers == {"4000B, onset 1": [4.0, 5.0], "4000B, onset 0": [None, 8.0]}
    assert draw(comparison, tmp_path / "again").read_text() == drawn


def test_lines_below_zero_are_within_the_figure(tmp_path: Path) -> None:
    row = '[[row]]\ncase = "4000B, onset 0"\nagainst = "4000B, onset 1"\nunit = "%"\n'
    mine = folder(tmp_path, f'{TABLE}plot = "lines"\n{row}')
    comparison = compare(mine.tables()[0], mine)
    assert [round(each.ours, 9) for each in comparison.rows] == [-60.0]
    # The axis has a tick at the figure, written with the sign for minus.
    assert "\N{MINUS SIGN}60" in draw(comparison, tmp_path).read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    mine = folder(tmp_path, TABLE + ROW)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as raised:
        draw(compare(mine.tables()[0], mine), tmp_path / "file")
    said = f"cannot write {tmp_path / 'file' / 'mine.svg'}: File exists"
    assert str(raised.value) == said
