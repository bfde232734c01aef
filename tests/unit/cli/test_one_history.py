"""Tests that all commands and pages give the same causes at the same times for one job."""

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_jobs import unpack

from slackline.causes import Watch
from slackline.cli import main
from slackline.history import Recording
from slackline.views.metrics import metrics_text
from slackline.views.page._messages import messages
from slackline.views.terminal import Report
from slackline.views.trace import Slice, events_of

LATER_NS = 2**62


def _watch(directory: Path) -> Watch:
    return Watch.recorded(directory, LATER_NS)


def _refused(sentence: str) -> None:
    pytest.fail(sentence)


def _printed(capsys: pytest.CaptureFixture[str], *command: str) -> Any:
    assert main(list(command)) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("apart_ns", [0, 3_000_000_000])
@pytest.mark.parametrize("name", ["cable", "delay", "half"])
def test_every_tool_names_the_same_cause_since_the_same_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, apart_ns: int
) -> None:
    unpack(name, tmp_path, apart_ns=apart_ns)
    (spell,) = _watch(tmp_path).spells
    told = spell.cause.sentence
    since_ns, named_ns = spell.cause.since_ns, spell.named_ns

    (cause,) = _printed(capsys, "why", "--json", str(tmp_path))["causes"]
    assert (cause["sentence"], cause["since_ns"], cause["named_ns"]) == (told, since_ns, named_ns)
    (cause,) = _printed(capsys, "top", "--json", str(tmp_path))["causes"]
    assert (cause["sentence"], cause["since_ns"]) == (told, since_ns)
    (cause,) = messages(_watch(tmp_path))["causes"]
    assert (cause["text"], cause["time_s"]) == (told, since_ns / 1e9)
    report = Report(tmp_path, ranks=4, unix=lambda: LATER_NS)
    report.update()
    assert f"cause: {told}" in report.news(ended=True)
    slices = [
        each
        for each in events_of(Recording(tmp_path, _refused))
        if isinstance(each, Slice) and each.category == "cause"
    ]
    assert {each.track.rank for each in slices} == set(spell.cause.ranks)
    assert {(each.arguments["sentence"], each.begin_ns) for each in slices} == {(told, since_ns)}
    shown = metrics_text(_watch(tmp_path))
    label = f'{{kind="{spell.cause.kind}",name="{spell.cause.name}"}}'
    assert f"slackline_cause{label} 1.0" in shown


@pytest.mark.parametrize("name", ["cable", "delay", "half"])
def test_clocks_of_hosts_that_differ_change_no_cause(tmp_path: Path, name: str) -> None:
    found = []
    for apart_ns in (0, 3_000_000_000):
        directory = tmp_path / str(apart_ns)
        directory.mkdir()
        unpack(name, directory, apart_ns=apart_ns)
        (spell,) = _watch(directory).spells
        found.append(spell)
    one, other = found
    assert one.cause.sentence == other.cause.sentence
    assert abs(one.named_ns - other.named_ns) <= 1_000_000  # the error of a probe


def test_a_job_that_is_read_while_it_grows_has_the_causes_of_a_job_that_is_read_at_once(
    tmp_path: Path,
) -> None:
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    whole.mkdir()
    growing.mkdir()
    unpack("cable", whole)
    (wanted,) = _watch(whole).spells
    lines = {path.name: path.read_text().splitlines(keepends=True) for path in whole.iterdir()}
    watch = None
    for count in range(1, max(map(len, lines.values())) + 1):
        for name, each in lines.items():
            (growing / name).write_text("".join(each[:count]))
        if watch is None:
            watch = _watch(growing)
        else:
            watch.update(LATER_NS)
    assert watch is not None
    (spell,) = watch.spells
    assert spell.cause.name == wanted.cause.name
