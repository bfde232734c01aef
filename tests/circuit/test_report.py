"""What a circuit takes of an FPGA does not grow unseen."""

from pathlib import Path

import pytest

from slackline import circuit, cli
from slackline.circuit import Verilog, resources
from slackline.errors import UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "circuit-report.txt"
GOLDEN_RING = GOLDEN.with_name("circuit-report-ring.txt")
# Yosys takes seconds, more on a busy machine.
pytestmark = pytest.mark.timeout(300)

COUNTER = Verilog(
    name="counter",
    text="""
module counter(input clk, output reg [7:0] count);
  always @(posedge clk) count <= count + 1;
endmodule
""",
    ports=(),
)


def golden_version() -> str:
    return GOLDEN.read_text().split(";")[0].removeprefix("Yosys ")


def needs_yosys() -> None:
    pytest.importorskip("amaranth", reason="circuits need amaranth: install slackline[circuit]")
    if circuit.yosys_version() is None:
        pytest.skip("Yosys is not installed (Debian: apt install yosys)")


@pytest.mark.parametrize(
    ("golden", "asked"),
    [
        pytest.param(GOLDEN, ["adder", "--families", "xcup,xc7"], id="adder"),
        pytest.param(
            GOLDEN_RING,
            ["ring", "--families", "xcup", "--lanes", "1", "--slots", "2", "--payload", "128B"],
            id="ring",
            # Yosys takes minutes.
            marks=[pytest.mark.slow, pytest.mark.timeout(1200)],
        ),
    ],
)
def test_a_circuit_takes_what_the_golden_file_says(
    golden: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    needs_yosys()
    if (version := circuit.yosys_version()) != golden_version():
        pytest.skip(f"the golden file is of Yosys {golden_version()}, here is {version}")
    assert cli.main(["circuit", "report", "--no-clock", "--circuits", *asked]) == 0
    assert capsys.readouterr().out == golden.read_text()


def test_cells_are_counted_by_kind() -> None:
    needs_yosys()
    found = resources(COUNTER, "xc7")
    assert (found.flip_flops, found.dsps, found.block_rams, found.memory_luts) == (8, 0, 0, 0)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            ["--circuits", "adder", "--families", "xc9"],
            "slackline: a family is one of xcup, xc7, ecp5, not 'xc9'",
        ),
        (
            ["--circuits", "multiplier"],
            "slackline: a circuit is one of adder, lanes, node, ring, not 'multiplier'",
        ),
    ],
)
def test_what_is_not_known_is_refused(
    asked: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_yosys()
    assert cli.main(["circuit", "report", *asked]) == 2
    assert capsys.readouterr().err.strip() == message


def test_without_yosys_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        resources(COUNTER, "xc7")
    assert str(caught.value) == "Yosys is not installed (Debian: apt install yosys)"
    assert circuit.yosys_version() is None
