"""Formal claims about circuits, settled by Yosys's SAT solver."""

import subprocess
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verdict(StrEnum):
    """The result for a circuit's claims."""

    PROVED = "hold in every cycle, by temporal induction"
    BOUNDED = "hold in all runs of so many cycles from the start"
    REFUTED = "fail in a run from the start"
    OPEN = "hold so far, but the induction did not close"


_SAID = {
    "Induction step proven: SUCCESS!": Verdict.PROVED,
    "SAT temporal induction proof finished - model found for base case: FAIL!": Verdict.REFUTED,
    "Reached maximum number of time steps -> proof failed.": Verdict.OPEN,
    "Reached maximum number of time steps -> proved base case": Verdict.BOUNDED,
}


def settle(circuit: Any, *, steps: int, bounded: bool = False, memories: str = "") -> Verdict:
    """Prove or refute the claims of a circuit, which starts after its reset and is not reset again.

    The proof is by induction over up to `steps` cycles. If `bounded`, it covers all runs of that
    many cycles instead. Reads of a memory give any value, except of memories whose name matches
    `memories` ("*" is all).
    """
    from amaranth.back import verilog

    text = verilog.convert(
        circuit,
        name="top",
        platform="formal",
        ports=_ports(circuit),
        emit_src=False,
        strip_internal_attrs=True,
    )
    how = f"-maxsteps {steps} {'-tempinduct-baseonly' if bounded else '-tempinduct'}"
    script = (
        "read_verilog -formal -icells circuit.v; prep -top top -flatten; "
        f"delete t:$mem_v2 {f'c:{memories} %d' if memories else ''}; memory_map; opt; "
        f"sat {how} -prove-asserts -set-assumes -set rst 0"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "circuit.v").write_text(text)
        done = subprocess.run(
            ["yosys", "-p", script], cwd=folder, capture_output=True, text=True, check=False
        )
    for words, verdict in _SAID.items():
        if words in done.stdout:
            return verdict
    raise AssertionError((done.stdout + done.stderr)[-3000:])


def _ports(circuit: Any) -> dict[str, Any]:
    """Return the wires of the circuit's signature, without constants."""
    from amaranth.hdl import Const, Value

    found = {
        "__".join(map(str, path)): (Value.cast(value), None)
        for path, _, value in circuit.signature.flatten(circuit)
    }
    return {name: port for name, port in found.items() if not isinstance(port[0], Const)}
