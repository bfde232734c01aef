"""Tests of looking inside a simulation: traces, held streams, later resets, snapshots, Ctrl-C."""

import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from circuit_driving import Sender

from slackline.circuit import (
    NodeOptions,
    Register,
    Simulation,
    Trace,
    Verilog,
    cached_node,
    node_registers,
)
from slackline.circuit.simulate._build import build
from slackline.circuit.simulate._verilog import Port
from slackline.errors import UsageError
from slackline.wire import DType

pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]

REGISTER = Verilog(
    name="register",
    text="""
module register(input clk, input rst, input [8:0] i__payload, input i__valid, output i__ready,
  output reg [8:0] o__payload, output reg o__valid, input o__ready,
  input [15:0] bus__address, input bus__write, input [31:0] bus__write_data,
  output reg [31:0] bus__read_data);
  reg [31:0] cycles, taken;
  assign i__ready = !o__valid || o__ready;
  always @(posedge clk) begin
    if (rst) begin o__valid <= 0; cycles <= 0; taken <= 0; end
    else begin
      cycles <= cycles + 1;
      if (i__ready) begin o__valid <= i__valid; o__payload <= i__payload; end
      if (i__ready && i__valid) taken <= taken + 1;
      bus__read_data <= bus__address[0] ? taken : cycles;
    end
  end
endmodule
""",
    ports=(
        *(Port(name=f"i__{name}", width=width, input=True) for name, width in (("payload", 9),)),
        Port(name="o__payload", width=9, input=False),
        Port(name="bus__address", width=16, input=True),
    ),
)
"""A circuit that gives each beat a cycle after it has taken it, with two registers."""
COUNTS = tuple(
    Register(name=name, address=4 * k, kind="counter", meaning=name)
    for k, name in enumerate(("cycles", "taken"))
)
OPTIONS = NodeOptions(ports=2, lanes=1, slots=2, payload_bytes=64)


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with Simulation(REGISTER) as made:
        yield made


def beats(*values: int) -> np.ndarray:
    return np.array([[value, 0] for value in values], np.uint8)


def changes(file: Path, wire: str) -> dict[int, int]:
    """Return the time of each change of a one-bit wire in a VCD file, with the new value."""
    text = file.read_text()
    [code] = set(re.findall(rf"\$var wire +1 (\S+) {wire} \$end", text))
    found, time = {}, 0
    for line in text.splitlines():
        if line.startswith("#"):
            time = int(line[1:])
        elif line[1:] == code and line[0] in "01":
            found[time] = int(line[0])
    return found


def test_a_trace_has_the_wires_of_the_given_cycles(tmp_path: Path) -> None:
    file = tmp_path / "made" / "register.vcd"
    with Simulation(REGISTER, trace=Trace(file=file, cycles=range(5, 9))) as traced:
        traced.hold(0, range(7))
        traced.push(0, beats(1))
        traced.step(20)
    # Cycle n begins at n ns, and the clock rises in its middle.
    assert changes(file, "clk") == {500 * k: k % 2 for k in range(10, 18)}
    assert changes(file, "i__valid") == {5000: 0, 7000: 1, 8000: 0}


def test_only_a_traced_circuit_is_compiled_with_traces() -> None:
    plain, traced = (build(REGISTER, traced=each) for each in (False, True))
    assert b"VerilatedVcd" in traced.read_bytes()
    assert b"VerilatedVcd" not in plain.read_bytes()


def test_the_environment_asks_for_a_file_of_each_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLACKLINE_CIRCUIT_TRACE", f"{tmp_path}/nic.vcd@2-3")
    with Simulation(REGISTER) as one, Simulation(REGISTER) as other:
        one.step(9)
        other.step(9)
    files = sorted(tmp_path.iterdir())
    assert [re.fullmatch(r"nic-register-\d+-\d+\.vcd", each.name) is None for each in files] == [
        False,
        False,
    ]
    assert all(min(changes(each, "clk")) == 2000 for each in files)
    assert all(max(changes(each, "clk")) == 3500 for each in files)


def test_a_trace_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken.vcd").mkdir()
    with pytest.raises(UsageError, match=r"^the trace .*taken\.vcd cannot be written: name an"):
        Simulation(REGISTER, trace=Trace(file=tmp_path / "taken.vcd"))
    with pytest.raises(UsageError, match=r"^a trace is a file whose name ends with \.vcd, not a$"):
        Trace(file=Path("a"))
    with pytest.raises(UsageError, match=r"^a trace needs at least one cycle, in steps of 1, not "):
        Trace(file=Path("a.vcd"), cycles=range(3, 3))


def test_a_held_stream_moves_in_the_cycle_after_the_hold(simulation: Simulation) -> None:
    now = simulation.step(0)
    simulation.hold(0, range(now, now + 40))
    simulation.hold(0, range(now, now + 60), output=True)
    simulation.push(0, beats(1, 2))
    simulation.step(41)
    assert simulation.waiting(0) == 1
    simulation.step(40)
    _, cycles = simulation.pull(0)
    assert list(cycles) == [now + 60, now + 61]


def test_a_reset_forgets_all_beats_and_the_time_goes_on(simulation: Simulation) -> None:
    simulation.hold(0, range(10), output=True)
    simulation.push(0, beats(1, 2, 3))
    simulation.step(5)
    simulation.reset()
    assert simulation.step(0) == 9
    assert simulation.snapshot(COUNTS) == {"cycles": 0, "taken": 0}
    simulation.push(0, beats(4))
    simulation.step(20)
    found, _ = simulation.pull(0)
    assert found.tolist() == [[4, 0]]


def test_a_snapshot_has_all_registers_of_one_cycle(simulation: Simulation) -> None:
    simulation.push(0, beats(1, 2, 3))
    simulation.step(2)
    assert simulation.snapshot(COUNTS) == {"cycles": 2, "taken": 2}
    assert simulation.snapshot(COUNTS[::-1]) == {"cycles": 2, "taken": 2}
    assert simulation.step(3) == 5
    assert simulation.snapshot(COUNTS) == {"cycles": 5, "taken": 3}


def test_a_snapshot_of_a_node_changes_nothing() -> None:
    registers = node_registers(OPTIONS)
    control = next(each.address for each in registers if each.name == "control")
    given = []
    for looks in (False, True):
        with Simulation(cached_node(OPTIONS)) as node:
            node.write(control, 1)
            for port in range(2):
                sender = replace(Sender(port), job=0, epoch=0)
                for frame in sender.message(bytes(range(128)), DType.INT32, 1, 64):
                    node.send(port, frame)
            seen = []
            for _ in range(40):
                node.step(5)
                if looks:
                    seen.append(node.snapshot(registers))
            given.append((node.frames(0), node.frames(1)))
            if looks:
                assert seen[-1] == {each.name: node.read(each.address) for each in registers}
                assert seen[-1]["frames"] == 2
                assert 0 < len({each["busy"] for each in seen}) < len(seen)
    assert len(given[0][0]) == 2
    assert given[0] == given[1]


def test_an_interrupt_ends_a_long_step(simulation: Simulation) -> None:
    begins = threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        begins.wait()
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may come before the step
        begins.set()
        simulation.step(100_000_000)
    thread.join()
    assert simulation.step(0) < 100_000_000
