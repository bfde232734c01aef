"""The comparison of a job whose sums a node has made with the same job in software."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from slackline.history import files_of, read_all
from slackline.records import StateHash

__all__ = ["same_bits"]


def same_bits(through_node: Path, in_software: Path, tell: Callable[[str], None]) -> bool:
    """Compare the states at the end of two runs, whose telemetry lies in two folders.

    `tell` receives the hashes. Returns False if they differ; True also if no rank has written one,
    since it did not train by slackline.overlap.DataParallel, which is told.
    """
    through, alone = (_hashes(each, tell) for each in (through_node, in_software))
    if not through and not alone:
        tell(
            "the states at the end were not compared: no rank has trained by "
            "slackline.overlap.DataParallel"
        )
        return True
    tell(
        f"hash of the state at the end: {_last(through)} through the node, "
        f"{_last(alone)} in software"
    )
    differing = [r for r in sorted({*through, *alone}) if through.get(r) != alone.get(r)]
    if differing:
        tell(f"the states differ on ranks {', '.join(map(str, differing))}")
    return not differing


def _hashes(telemetry: Path, report: Callable[[str], None]) -> dict[int, list[str]]:
    """Return the hashes that each rank has written, in their order."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in files_of(telemetry):
        for record in read_all(path, report):
            if isinstance(record, StateHash):
                found[record.rank].append(record.hash)
    return dict(found)


def _last(hashes: dict[int, list[str]]) -> str:
    """Return the last hash of the lowest rank."""
    return hashes[min(hashes)][-1] if hashes else "none"
