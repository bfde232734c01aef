"""Tests of Verilog, register tables and simulations, and of the errors when a tool is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slackline import circuit, cli
from slackline._distribution import version
from slackline.circuit import NodeOptions, Verilog, c_header, cached_node, node_registers
from slackline.errors import TimeoutError, UsageError

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = pytest.mark.timeout(300)


def test_the_command_writes_verilog_and_registers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")
    out = tmp_path / "made"
    asked = ["--lanes", "1", "--ports", "2", "--slots", "2", "--payload", "64B"]
    asked += ["--out", str(out)]
    assert cli.main(["circuit", "verilog", *asked]) == 0
    described = [f"slackline_{name}.{end}" for name in ("node", "ring") for end in ("v", "h", "md")]
    names = [*described, "slackline_lanes.v", "slackline_ethernet.v", "slackline_ethernet_node.v"]
    names += ["waivers.vlt", "slackline_node_tb.v"]
    names += [f"slackline_node_{stream}.hex" for stream in ("rx0", "rx1", "tx")]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in names]
    for name in ("node", "ring", "lanes", "ethernet"):
        assert f"module slackline_{name}(" in (out / f"slackline_{name}.v").read_text()
    header = (out / names[4]).read_text()
    assert "#define SLACKLINE_RING_TIMEOUT_RESET 0x4000u\n" in header
    assert "#define SLACKLINE_RING_DESCRIPTOR_TAIL 0x10Cu\n" in header
    assert "struct slackline_ring_descriptor {\n" in header
    assert cli.main(["circuit", "verilog", *asked, "--ahead", "31"]) == 2
    said = "slackline: ahead_beats must be 0 or at least 32, not 31"
    assert capsys.readouterr().err.strip() == said


def test_the_same_circuit_is_the_same_verilog() -> None:
    pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")
    one, other = (circuit.convert("lanes", circuit.Lanes(2)) for _ in range(2))
    assert one.key == other.key


def test_registers_have_addresses_of_their_own() -> None:
    registers = node_registers(NodeOptions(ports=16))
    addresses = [each.address for each in registers]
    assert addresses == sorted(set(addresses))
    assert all(address % 4 == 0 for address in addresses)


def test_the_c_header_has_every_register() -> None:
    text = c_header(node_registers(NodeOptions(ports=2)))
    assert "#define SLACKLINE_NODE_THRESHOLD 0x028u\n" in text
    assert "#define SLACKLINE_NODE_THRESHOLD_RESET 0x1u\n" in text
    assert "#define SLACKLINE_NODE_PORT1_ACCEPTED 0x140u\n" in text


@pytest.mark.simulates
def test_registers_read_what_was_written_and_constants_stay() -> None:
    options = NodeOptions(ports=3, lanes=1, slots=4, payload_bytes=64)
    with circuit.Simulation(cached_node(options)) as simulation:
        for each in node_registers(options):
            assert simulation.read(each.address) == each.value
        for each in node_registers(options):
            if each.name != "control":
                simulation.write(each.address, 0x12345678)
        for each in node_registers(options):
            kept = each.kind != "setting" or each.name == "control"
            assert simulation.read(each.address) == (each.value if kept else 0x12345678)
        assert simulation.read(0xFFC) == 0


def test_without_verilator_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    verilog = Verilog(name="empty", text="module empty; endmodule", ports=())
    with pytest.raises(UsageError) as caught:
        circuit.Simulation(verilog)
    assert str(caught.value) == (
        "circuits cannot be simulated here: "
        "Verilator is not installed (Debian: apt install verilator)"
    )


def test_without_a_compiler_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "verilator").write_text("#!/bin/sh\n")
    (tmp_path / "verilator").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert circuit.missing_tools() == "there is no C++ compiler (Debian: apt install g++)"


@pytest.mark.simulates
def test_verilog_that_verilator_refuses_is_an_error_that_quotes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    verilog = Verilog(name="broken", text="module broken; wire", ports=())
    with pytest.raises(UsageError, match=r"(?s)^verilator ended with code 1:\n.*syntax error"):
        circuit.Simulation(verilog)


INTERRUPTED = """
import signal, threading
from pathlib import Path
from slackline.circuit import Simulation, Verilog

def interrupt():
    Path("compiler").write_text(Path("started").read_text().split()[0])
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
Simulation(Verilog(name="empty", text="module empty(input clk); endmodule", ports=()))
"""
"""A program that is interrupted while it compiles.

Another thread takes the signal, so that the main thread is not woken: a signal that arrives just
before the main thread blocks has the same effect.
"""


@pytest.mark.simulates
def test_compilers_end_with_the_process_that_has_started_them(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "started")
    endless = tmp_path / "c++"
    endless.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/started\nexec sleep 1000\n")
    endless.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PATH": path},
        stderr=subprocess.PIPE,
        text=True,
        timeout=110,
        check=False,
    )
    assert ended.stderr.splitlines()[-1] == "KeyboardInterrupt"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "compiler").read_text()), 0)


@pytest.mark.simulates
def test_a_simulation_says_what_was_wrong() -> None:
    with circuit.Simulation(circuit.convert("lanes", circuit.Lanes(1))) as simulation:
        with pytest.raises(UsageError, match=r"^a beat of input 0 has 9 bytes, not \(8,\)$"):
            simulation.push(0, np.zeros((1, 8), np.uint8))
        with pytest.raises(UsageError, match=r"^there is no input 1, only 0 to 0$"):
            simulation.waiting(1)
        with pytest.raises(UsageError, match=r"^this circuit has no registers$"):
            simulation.read(0)
        with pytest.raises(UsageError, match=r"^a share must be at least 0 and .* not 1$"):
            simulation.stall(0, 1, 1)
        with pytest.raises(TimeoutError, match=r"^the circuit did not give 1 beats in 5 cycles$"):
            simulation.run(1, cycles=5)
    with pytest.raises(UsageError, match=r"^the simulation is closed$"):
        simulation.step(1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a folder with the exported files of small circuits."""
    pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")
    folder = tmp_path_factory.mktemp("exported")
    options = NodeOptions(ports=2, lanes=1, slots=2, payload_bytes=64)
    ring = circuit.RingOptions(lanes=1, slots=2, payload_bytes=128, operations=2)
    circuit.export(options, ring, folder)
    return folder


def benched(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the testbench of an exported node in Icarus."""
    files = ["slackline_node.v", "slackline_node_tb.v"]
    made = subprocess.run(
        ["iverilog", "-g2012", "-Wall", "-o", "node", *files],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    assert "slackline_node_tb.v" not in made.stderr, made.stderr
    return subprocess.run(["vvp", "node"], cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("iverilog") is None, reason="iverilog is missing: apt install iverilog"
)
def test_the_exported_testbench_passes_and_finds_a_sum_that_differs(
    exported: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "exported"))
    done = benched(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASS: 569 beats of sums at each of 2 ports")
    sums = folder / "slackline_node_tx.hex"
    lines = sums.read_text().splitlines()
    for at, line in (
        (20, f"{int(lines[20], 16) ^ 1:x}"),
        (20, f"{int(lines[20], 16) ^ 1 << 36:x}"),
    ):
        sums.write_text("\n".join([*lines[:at], line, *lines[at + 1 :]]) + "\n")
        done = benched(folder)
        assert done.returncode != 0
        assert f"beat {at}: " in done.stdout
    sums.write_text("\n".join([*lines, lines[-1]]) + "\n")  # a beat too many changes nothing
    assert benched(folder).returncode == 0


def complaints(folder: Path, name: str) -> str:
    """Return what Verilator's lint says of an exported circuit, with the waivers beside it."""
    command = ["verilator", "--lint-only", "-Wall", "--top-module", name, "waivers.vlt"]
    done = subprocess.run(
        [*command, f"{name}.v"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode != 0) == bool(done.stderr)
    return done.stderr


CIRCUITS = ["node", "ring", "lanes", "ethernet", "ethernet_node"]


@pytest.mark.simulates
@pytest.mark.slow
@pytest.mark.parametrize("name", CIRCUITS)
def test_exported_verilog_is_clean_under_lint_with_the_stated_waivers(
    exported: Path, name: str
) -> None:
    assert complaints(exported, f"slackline_{name}") == ""


@pytest.mark.simulates
@pytest.mark.slow
def test_lint_finds_a_pin_that_nothing_is_connected_to(exported: Path, tmp_path: Path) -> None:
    right = ".o__valid(m_axis_o_tvalid)"
    text = (exported / "slackline_lanes.v").read_text()
    assert text.count(right) == 1
    wrong = text.replace(right, ".o__valid()")
    (tmp_path / "slackline_lanes.v").write_text(wrong)
    (tmp_path / "waivers.vlt").write_text((exported / "waivers.vlt").read_text())
    assert "PINCONNECTEMPTY" in complaints(tmp_path, "slackline_lanes")


@pytest.mark.slow
@pytest.mark.parametrize("name", CIRCUITS)
def test_exported_verilog_says_its_version_and_options(exported: Path, name: str) -> None:
    first = (exported / f"slackline_{name}.v").read_text().splitlines()[0]
    sizes = "RingOptions(lanes=1, slots=2" if name == "ring" else "NodeOptions(ports=2, lanes=1"
    assert first.startswith(f"/* slackline {version()}, slackline circuit verilog: {sizes}")
