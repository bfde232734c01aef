"""A view of a job as lines that fit a window."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.text import Text

from slackline.causes import Spell
from slackline.history import CommonDecision, Direction, Finding, State, common_decisions
from slackline.records import Decision
from slackline.units import count, show_number, show_percent, show_rate, show_time
from slackline.views.terminal._lines import Column, cut, lines_of, printable
from slackline.views.terminal._ranks_text import ranks_text
from slackline.views.terminal._view import RankView, View

__all__ = ["divide", "screen_of"]

_MOST_ROWS = 20
"""The most rows of a table without a window's height, the table of ranks excepted."""

_MOST_RANKS_WIDTH = 16
"""The most characters of the ranks that have made a decision."""

_FRAME = 2
"""The lines of a table besides its rows: an empty line and the names of the columns."""

_RANKS = (
    Column("rank"),
    Column("host", 4, right=False),
    Column("state", right=False),
    Column("step"),
    Column("steps/s", 1),
    Column("exposed", 3),
    Column("share", 2),
    Column("operations", 5),
)
_LINKS = (
    Column("link", right=False),
    Column("rail", 3),
    Column("kind", 4, right=False),
    Column("state", right=False),
    Column("rate", 1),
    Column("round trip", 2),
)
_DEVICES = (
    Column("rank"),
    Column("device", right=False),
    Column("frames"),
    Column("cycles", 1),
)
_CAUSES = (Column("since", 1), Column("until", 2))
_FINDINGS = (Column("at", 1),)
_DECISIONS = (Column("at", 3), Column("ranks", 2), Column("decision", 1, right=False))

_STYLES = {State.RUNNING: "", State.SILENT: "red", State.ENDED: "dim", State.GONE: "red"}


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the screen: its columns and rows, and the style of each row."""

    columns: Sequence[Column]
    facts: Sequence[Any]
    """What the rows are about."""
    row: Callable[[Any], Sequence[str]]
    """The function that makes a row; rows that do not fit are not made."""
    style: Callable[[Any], str] = lambda _: ""
    sentence: str = ""
    """The name of the column of sentences at the end of each line; empty without one."""

    def lines(self, width: int, most: int) -> list[Text]:
        """Return the table with at most `most` rows; the last row counts the missing ones."""
        missing = len(self.facts) - most + 1 if len(self.facts) > most else 0
        shown = self.facts[: most - 1] if missing else self.facts
        names, *lines = lines_of(
            self.columns, [self.row(each) for each in shown], width, sentence=self.sentence
        )
        styles = [self.style(each) for each in shown]
        texts = [Text(line, style=style) for line, style in zip(lines, styles, strict=True)]
        if missing:
            texts.append(Text(f"and {missing} more"[:width], style="dim"))
        return [Text(), Text(names, style="bold"), *texts]


def screen_of(view: View, width: int, height: int | None = None, *, note: str = "") -> list[Text]:
    """Return the lines of the screen, each at most `width` cells wide.

    With `height` there are at most so many lines: the tables share them, and those for which no
    line is left are missing. `note` is the second line, if it is not empty.
    """
    head = [Text(cut(_headline(view), width), style="bold")]
    if note:
        head.append(Text(cut(printable(note), width), style="dim"))
    tables = [table for table in _tables(view) if table.facts]
    if height is None:
        rows = [len(t.facts) if t.columns is _RANKS else _MOST_ROWS for t in tables]
    else:
        rows = divide(height - len(head), [len(table.facts) for table in tables])
    found = [table.lines(width, most) for table, most in zip(tables, rows, strict=True) if most]
    lines = [*head, *(line for table in found for line in table)]
    return lines if height is None else lines[:height]


def divide(lines: int, wanted: Sequence[int]) -> list[int]:
    """Return the number of rows of each table, so that all tables need at most `lines` lines.

    `wanted` has the numbers of rows that there are. A table without a row has no frame either. The
    first tables get their first row first; further rows go around evenly.
    """
    given = [0] * len(wanted)
    for at in range(len(wanted)):
        if lines > _FRAME:
            given[at] = 1
            lines -= _FRAME + 1
    while lines > 0:
        hungry = [at for at, rows in enumerate(given) if 0 < rows < wanted[at]]
        if not hungry:
            break
        for at in hungry[:lines]:
            given[at] += 1
        lines -= len(hungry)
    return given


def _headline(view: View) -> str:
    hosts = len({rank.host for rank in view.ranks if rank.host})
    parts = [count(view.world_size, "rank") if view.ranks else "no rank has written a record yet"]
    if hosts:
        parts[0] += f" on {count(hosts, 'host')}"
    if view.begun_ns:
        ended = all(rank.state in (State.ENDED, State.GONE) for rank in view.ranks)
        until_ns = max(rank.seen_ns for rank in view.ranks) if ended else view.time_ns
        parts.append(_elapsed(until_ns - view.begun_ns))
        if step := min(rank.step for rank in view.ranks):
            parts.append(f"step {step}")
        if ended:
            parts.append("ended")
    if gone := sum(rank.state is State.GONE for rank in view.ranks):
        parts.append(f"{count(gone, 'rank')} gone")
    if silent := [rank.rank for rank in view.ranks if rank.state is State.SILENT]:
        parts.append(f"{count(len(silent), 'rank')} silent")
    if disturbed := sum(link.condition is not None for link in view.links):
        parts.append(f"{count(disturbed, 'direction')} disturbed")
    return ", ".join(parts)


def _tables(view: View) -> list[_Table]:
    def cause(spell: Spell) -> tuple[str, ...]:
        until = "" if spell.until_ns is None else _at(view, spell.until_ns)
        return _at(view, spell.cause.since_ns), until, spell.cause.sentence

    def finding(told: Finding) -> tuple[str, ...]:
        return _at(view, told.time_ns), told.sentence

    def decision(made: CommonDecision) -> tuple[str, ...]:
        first, ranks = made.first, ranks_text(made.ranks, _MOST_RANKS_WIDTH)
        return _at(view, first.time_ns), ranks, first.subject, _choice(first)

    decisions = tuple(reversed(common_decisions(view.decisions)))
    return [
        _Table(_RANKS, view.ranks, _rank, lambda each: _STYLES[each.state]),
        _Table(
            _CAUSES,
            view.causes,
            cause,
            lambda each: "red" if each.until_ns is None else "",
            sentence="cause of slow steps",
        ),
        _Table(
            _LINKS,
            view.links,
            _link,
            lambda each: "" if each.condition is None else "red",
            sentence="condition",
        ),
        _Table(
            _DEVICES,
            [each for each in view.ranks if each.device is not None],
            _device,
            sentence="share of the cycles",
        ),
        _Table(_FINDINGS, view.findings, finding, sentence="finding"),
        _Table(_DECISIONS, decisions, decision, sentence="choice and reason"),
        _Table(
            (),
            view.problems,
            lambda each: (each,),
            lambda _: "yellow",
            sentence="telemetry that is missing",
        ),
    ]


def _choice(decision: Decision) -> str:
    return f"{decision.choice}: {decision.reason}"


def _rank(rank: RankView) -> tuple[str, ...]:
    state = str(rank.state)
    if rank.state is State.SILENT:
        state = f"silent for {_ago(rank.quiet_ns)}"
    operations = sum(totals.count for totals in rank.operations.values())
    if not rank.step:
        return str(rank.rank), rank.host, state, "-", "-", "-", "-", str(operations)
    return (
        str(rank.rank),
        rank.host,
        state,
        str(rank.step),
        show_number(rank.steps_per_second),
        show_time(rank.exposed_ns),
        show_percent(rank.exposed_share),
        str(operations),
    )


def _link(link: Direction) -> tuple[str, ...]:
    trip_ns = link.round_trip_ns
    return (
        f"{link.source}>{link.target}",
        str(link.rail),
        link.kind,
        "" if link.condition is None else str(link.condition),
        show_rate(link.bits_per_second),
        show_time(trip_ns) if trip_ns else "-",
        link.sentence,
    )


def _device(rank: RankView) -> tuple[str, ...]:
    device = rank.device
    assert device is not None
    return (
        str(rank.rank),
        device.device,
        str(device.counts.get("accepted", 0)),
        str(device.cycles) if device.cycles else "-",
        device.sentence,
    )


def _at(view: View, time_ns: int) -> str:
    return _elapsed(time_ns - view.begun_ns)


def _elapsed(duration_ns: int) -> str:
    """Format the time since the job's beginning: "0:01:05"."""
    return str(timedelta(seconds=max(duration_ns, 0) // 1_000_000_000))


def _ago(duration_ns: int) -> str:
    """Format an age: "12 s", and "1:02:03" from a minute on."""
    seconds = duration_ns // 1_000_000_000
    return f"{seconds} s" if seconds < 60 else _elapsed(duration_ns)
