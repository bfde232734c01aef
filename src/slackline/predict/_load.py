"""The reader of a run from a directory of telemetry or of traces."""

from collections.abc import Callable
from pathlib import Path

from slackline.errors import UsageError
from slackline.predict._chakra_reader import load_chakra
from slackline.predict._kineto import load_kineto
from slackline.predict._run import Run
from slackline.predict._telemetry import load_telemetry

__all__ = ["load"]


def load(directory: Path, report: Callable[[str], None] | None = None) -> Run:
    """Read the run whose files are in a directory, and calibrate its network.

    The directory has telemetry (rank-*.jsonl, or telemetry/rank-*.jsonl as `slackline run --keep`
    writes it), Chakra execution traces (NAME.RANK.et), or traces of torch.profiler (*.json or
    *.json.gz), with a file for each rank.

    `report` receives a sentence for each damaged line of telemetry; without it such a line raises
    UsageError. Raises UsageError that names the file, and the line or event, for a run from which
    no prediction can be made.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory")
    chakra = sorted(directory.glob("*.et"))
    kineto = sorted({*directory.glob("*.json"), *directory.glob("*.json.gz")})
    if (directory / "telemetry").is_dir() or any(directory.glob("rank-*.jsonl")):
        return load_telemetry(directory, report)
    if chakra:
        return load_chakra(chakra)
    if kineto:
        return load_kineto(kineto)
    raise UsageError(
        f"there is no run in {directory}: it has neither telemetry (rank-*.jsonl) nor traces "
        "(NAME.RANK.et, *.json); slackline run --keep DIR and SLACKLINE_TELEMETRY=DIR write "
        "telemetry"
    )
