"""A Gantt chart of a pipeline plan: a row for each rank, a bar for each computation."""

from pathlib import Path

from slackline._distribution import install
from slackline.errors import UsageError
from slackline.plan.pipeline import PS_PER_MS, Kind, PipelinePlan, Scenario, replay
from slackline.units import show_time

__all__ = ["draw"]

_COLOURS = {Kind.F: "#4c78a8", Kind.B: "#e45756", Kind.W: "#72b7b2", Kind.BW: "#b279a2"}
_FORMATS = (".png", ".svg")
_LABELLED = 700
"""The most bars of a chart that are labelled; with more, the labels would be unreadable."""


def draw(plan: PipelinePlan, scenario: Scenario, path: Path) -> None:
    """Draw a plan as a Gantt chart into `path`, a .png or .svg file.

    The same plan gives the same SVG, byte for byte. Raises UsageError for another suffix, for a
    path that cannot be written, or if matplotlib is not installed.
    """
    if path.suffix.lower() not in _FORMATS:
        raise UsageError(f"--plot must end in {' or '.join(_FORMATS)}, not {path.name!r}")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"--plot needs matplotlib: {install('plot')}") from None
    timing = replay(plan, scenario)
    labelled = sum(map(len, plan.programs)) <= _LABELLED
    with rc_context({"svg.hashsalt": "slackline", "font.size": 7}):
        figure = Figure(figsize=(14, 1 + 0.45 * plan.ranks), layout="constrained")
        axes = figure.add_subplot()
        for rank, program in enumerate(plan.programs):
            for each, start, end in zip(
                program, timing.start_ps[rank], timing.end_ps[rank], strict=True
            ):
                left, width = start / PS_PER_MS, (end - start) / PS_PER_MS
                dark = each.stage != plan.placement[each.stage]
                axes.barh(
                    rank,
                    width,
                    left=left,
                    height=0.8,
                    color=_COLOURS[each.kind],
                    alpha=0.6 if dark else 1.0,
                    edgecolor="white",
                    linewidth=0.4,
                )
                if labelled:
                    axes.text(
                        left + width / 2,
                        rank,
                        str(each.microbatch),
                        ha="center",
                        va="center",
                        color="white",
                    )
        for kind in _COLOURS:
            if any(each.kind is kind for _, _, each in plan.cells()):
                axes.barh(0, 0, color=_COLOURS[kind], label=kind.value)
        axes.set_yticks(range(plan.ranks), [f"rank {rank}" for rank in range(plan.ranks)])
        axes.invert_yaxis()
        axes.set_xlim(0, timing.makespan_ps / PS_PER_MS)
        axes.set_xlabel("ms")
        axes.set_title(f"{plan}: {show_time(timing.makespan_ps / 1000)}")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=4, frameon=False)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        try:
            figure.savefig(path, metadata=metadata, dpi=150)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
