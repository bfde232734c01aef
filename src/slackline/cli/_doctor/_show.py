"""Tables of findings and of measured transfers, for a terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from slackline.cli._doctor._finding import Finding, Level
from slackline.cli._doctor._matrix import Matrix, latency, rate

__all__ = ["findings_table", "matrix_table", "to_mend"]

_MARKS = {Level.WELL: ("ok", "green"), Level.NOTE: ("note", "yellow"), Level.MEND: ("mend", "red")}


def findings_table(findings: Sequence[Finding], title: str) -> Table:
    """Return a table with a row for each finding."""
    table = Table(title=title, title_justify="left", show_header=False)
    for finding in findings:
        word, color = _MARKS[finding.level]
        table.add_row(Text(word, style=color), finding.name, finding.value)
    return table


def matrix_table(matrix: Matrix) -> Table:
    """Return a table of bandwidth and latency: senders as rows, receivers as columns."""
    table = Table(
        title=f"over {matrix.rails}: bandwidth and latency, one way",
        title_justify="left",
        caption="rows send, columns receive; half of a round trip counts as one way",
    )
    ranks = range(len(matrix.hosts))
    table.add_column("")
    for rank in ranks:
        table.add_column(f"rank {rank}", justify="right")
    for source in ranks:
        cells = []
        for target in ranks:
            found = matrix.measured.get((source, target))
            cells.append(
                f"{rate(found.bytes_per_second)}\n{latency(found.latency_ns)}" if found else "-"
            )
        table.add_row(f"rank {source}", *cells)
    return table


def to_mend(found: Mapping[str, Sequence[Finding]]) -> RenderableType:
    """Return a sentence, and the command to run, for each finding that needs attention.

    The keys of `found` name the places: a host, or "between ranks".
    """
    lines = []
    for where, finding in ((where, each) for where, those in found.items() for each in those):
        if finding.level is Level.WELL:
            continue
        word, color = _MARKS[finding.level]
        place = f"{where}: " if len(found) > 1 else ""
        lines.append(Text(f"{word}: ", style=color) + Text(f"{place}{finding.advice}"))
        if finding.command:
            lines.append(Text(f"      {finding.command}"))
    return Group(*lines) if lines else Text("all is well", style="green")
