"""Tests that a circuit's use of an FPGA does not grow unnoticed."""

from pathlib import Path

import pytest
from report_reading import grown, numbers

from slackline import circuit, cli
from slackline.circuit import Verilog, logic_levels, resources, resources_added_up
from slackline.circuit.measure._alike import alike_once
from slackline.errors import UsageError

GOLDEN = Path(__file__).parents[2] / "golden" / "circuit-report.txt"
GOLDEN_RING = GOLDEN.with_name("circuit-report-ring.txt")
# The limit leaves time for Yosys, which takes seconds, or more on a busy machine.
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


COUNT = """
module \\top.count_{0} (clk, count);
  input clk;
  output [7:0] count;
  reg [7:0] count;
  always @(posedge clk) count <= count + 1;
endmodule
"""
FOUR = Verilog(
    name="top",
    text="".join(COUNT.format(k) for k in range(4))
    + """
module top(clk, out);
  input clk;
  output out;
  wire [7:0] a, b, c, d;
  reg out;
  \\top.count_0  count_0 (
    .clk(clk), .count(a)
  );
  \\top.count_1  count_1 (
    .clk(clk), .count(b)
  );
  \\top.count_2  count_2 (
    .clk(clk), .count(c)
  );
  \\top.count_3  count_3 (
    .clk(clk), .count(d)
  );
  always @(posedge clk) out <= ^{a, b, c, d};
endmodule
""",
    ports=(),
)
STAGES = Verilog(
    name="stages",
    text="""
module stages(input clk, input [6:0] i, output reg o);
  reg [6:0] a;
  reg [11:0] b;
  integer k;
  always @(posedge clk) begin
    a <= i;
    for (k = 0; k < 12; k = k + 1) b[k] <= a[k % 7] & a[(k + 1 + k / 7) % 7];
    o <= ^b;
  end
endmodule
""",
    ports=(),
)


def golden_version() -> str:
    return GOLDEN.read_text().split(";")[0].removeprefix("Yosys ")


def needs_yosys() -> None:
    pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")
    if circuit.yosys_version() is None:
        pytest.skip("Yosys is not installed (Debian: apt install yosys)")


@pytest.mark.parametrize(
    ("golden", "asked"),
    [
        # Yosys maps the adder to an ECP5 three times as fast as to a Xilinx device.
        pytest.param(GOLDEN, ["adder", "--families", "ecp5"], id="adder"),
        pytest.param(
            GOLDEN, ["adder", "--families", "xcup,xc7"], id="families", marks=pytest.mark.slow
        ),
        pytest.param(
            GOLDEN_RING,
            ["ring", "--families", "xcup", "--lanes", "1", "--slots", "2", "--payload", "128B"],
            id="ring",
            # The longer limit is for Yosys, which takes minutes here.
            marks=[pytest.mark.slow, pytest.mark.timeout(1200)],
        ),
    ],
)
def test_a_circuit_takes_no_more_than_the_golden_file_says(
    golden: Path, asked: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    needs_yosys()
    if (version := circuit.yosys_version()) != golden_version():
        pytest.skip(f"the golden file is of Yosys {golden_version()}, here is {version}")
    assert cli.main(["circuit", "report", "--no-clock", "--circuits", *asked]) == 0
    families = asked[asked.index("--families") + 1].split(",")
    assert grown(golden.read_text(), capsys.readouterr().out, families) == []


def test_the_golden_file_has_all_figures() -> None:
    found = numbers(GOLDEN.read_text())
    assert len(found) == 3 * (6 + 12)
    assert found["one adder, xcup, luts"] == 550
    assert found["one adder, xc7, levels in stage 1"] == 9


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (" 550 ", " 576 ", []),
        (" 550 ", " 578 ", ["one adder, xcup, luts: 550 became 578"]),
        (" 550 ", " 400 ", []),
        ("stages: 4 9 7", "stages: 4 10 7", ["one adder, xcup, levels in stage 1: 9 became 10"]),
        ("one adder                 xc7 ", "two adders                xc7 ", None),
    ],
)
def test_growth_of_five_percent_is_told(right: str, wrong: str, told: list[str] | None) -> None:
    text = GOLDEN.read_text()
    found = grown(text, text.replace(right, wrong, 1))
    assert found == told if told is not None else len(found) == 2 * (6 + 12)


def test_a_circuit_whose_name_has_a_comma_is_compared_too() -> None:
    text = GOLDEN_RING.read_text()
    assert grown(text, text, ["xcup"]) == []
    assert grown(text, text.replace(" 15672 ", " 16500 "), ["xcup"]) == [
        "ring NIC, 1 lane, xcup, luts: 15672 became 16500"
    ]


def test_cells_are_counted_by_kind() -> None:
    needs_yosys()
    found = resources(COUNTER, "ecp5")
    assert (found.flip_flops, found.dsps, found.block_rams, found.memory_luts) == (8, 0, 0, 0)


def test_parts_that_are_alike_are_synthesised_once_and_added_up() -> None:
    needs_yosys()
    whole = resources(FOUR, "ecp5")
    found, parts = resources_added_up(FOUR, "ecp5")
    assert found == whole
    assert found.flip_flops == 33
    assert parts == {"count_0": 4}


def test_less_than_four_that_are_alike_are_left_as_they_are() -> None:
    assert alike_once(FOUR, least=5) == (FOUR, {})
    once, counts = alike_once(FOUR)
    assert counts == {"\\top.count_0": 4}
    assert once.text.count("module \\top.count_") == 1
    assert once.text.count("  \\top.count_0  count_") == 4


def test_levels_are_counted_from_register_to_register() -> None:
    needs_yosys()
    assert logic_levels(STAGES, "ecp5") == (0, 1, 2)


def test_what_follows_itself_has_no_stages() -> None:
    needs_yosys()
    with pytest.raises(UsageError) as caught:
        logic_levels(COUNTER, "ecp5")
    assert str(caught.value) == "a register feeds itself, so the circuit is not a pipeline"


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
