"""A testbench of the aggregation node in Verilog, which checks itself, and its vectors.

    iverilog -g2012 -o node slackline_node.v slackline_node_tb.v && vvp node

The vectors are beats of frames, one in a line: tlast, tkeep and tdata as one hexadecimal number.
Those of the sums come from the node's twin.
"""

import random
from collections.abc import Sequence

from slackline.circuit.bus import ADDRESS_BITS
from slackline.circuit.options import ELEMENTS, NodeOptions
from slackline.circuit.registers import node_registers
from slackline.circuit.twins import NodeTwin
from slackline.wire import Collective, DType, FrameKind, Header, ReduceOp, encode

__all__ = ["node_testbench"]

_ROUNDS = 6
"""The messages of each type."""


def node_testbench(options: NodeOptions) -> dict[str, str]:
    """Return the testbench and its vectors as texts, by the name of the file.

    Ranks send frames of every type and of drawn lengths, as fast as the node takes them; the
    testbench takes the sums with drawn pauses, and ends with `$fatal` unless each beat is right.
    """
    twin, draw = NodeTwin(options=options), random.Random(0)
    sent: list[list[bytes]] = [[] for _ in range(options.ports)]
    sums: list[bytes] = []
    dtypes = [dtype for _ in range(_ROUNDS) for dtype in ELEMENTS]
    for number, dtype in enumerate(dtypes, 1):
        size = dtype.itemsize * draw.randint(1, options.payload_bytes // dtype.itemsize)
        for port, frames in enumerate(sent):
            frames.append(_frame(port, number, dtype, draw.randbytes(size)))
            sums += twin.receive(port, frames[-1])
    given = [_vectors(frames, options.beat_bytes) for frames in sent]
    expected = _vectors(sums, options.beat_bytes)
    texts = {"slackline_node_tb.v": _bench(options, len(given[0]), len(expected))}
    texts |= {f"slackline_node_rx{port}.hex": _lines(given[port]) for port in range(options.ports)}
    return texts | {"slackline_node_tx.hex": _lines(expected)}


def _frame(port: int, number: int, dtype: DType, data: bytes) -> bytes:
    header = Header(
        kind=FrameKind.DATA,
        source=port,
        dtype=dtype,
        collective=Collective.ALL_REDUCE,
        reduce_op=ReduceOp.SUM,
        tag=number,
        sequence=number,
        total=len(data),
        length=len(data),
    )
    return encode(header) + data


def _vectors(frames: Sequence[bytes], beat: int) -> list[int]:
    """Return the beats of frames, tlast above tkeep above tdata."""
    found = []
    for frame in frames:
        for start in range(0, len(frame), beat):
            part = frame[start : start + beat]
            last = start + beat >= len(frame)
            keep = (1 << len(part)) - 1
            found.append((last << beat | keep) << 8 * beat | int.from_bytes(part, "little"))
    return found


def _lines(vectors: Sequence[int]) -> str:
    return "".join(f"{each:x}\n" for each in vectors)


def _bench(options: NodeOptions, given: int, expected: int) -> str:
    """Return the testbench for this many beats of each rank, and of sums at each port."""
    ports = range(options.ports)
    control = next(each for each in node_registers(options) if each.name == "control")
    connected = [
        *(f".s_axis_rx{p}_t{name}(rx{p}_{name})" for p in ports for name in _STREAM),
        *(f".m_axis_tx{p}_t{name}(tx{p}_{name})" for p in ports for name in _STREAM),
    ]
    return _BENCH.format(
        beat=options.beat_bytes,
        given=given,
        expected=expected,
        limit=1000 + 40 * (given + expected) * options.ports,
        control=control.address,
        address=ADDRESS_BITS,
        streams="".join(_stream(port) for port in ports),
        connected=",\n    ".join(connected),
        ended=" && ".join(f"tx{p}_at == EXPECTED" for p in ports),
        ports=options.ports,
    )


def _stream(port: int) -> str:
    """Return the frames and the sums of a rank; `@` stands for its port, `#` for Verilog's `@`."""
    return (_RX + _TX).replace("@", str(port)).replace("#", "@")


_STREAM = ("data", "keep", "last", "user", "valid", "ready")

_RX = """
  // The frames of rank @.
  reg [9*BEAT:0] rx@[0:GIVEN-1];
  integer rx@_at = 0;
  wire [8*BEAT-1:0] rx@_data = rx@[rx@_at][8*BEAT-1:0];
  wire [BEAT-1:0] rx@_keep = rx@[rx@_at][9*BEAT-1:8*BEAT];
  wire rx@_last = rx@[rx@_at][9*BEAT];
  wire rx@_user = 1'b0;
  wire rx@_valid = open && rx@_at < GIVEN;
  wire rx@_ready;
  initial $readmemh("slackline_node_rx@.hex", rx@);
  always #(posedge aclk) if (rx@_valid && rx@_ready) rx@_at <= rx@_at + 1;
"""

_TX = """
  // The sums of rank @.
  integer tx@_at = 0, tx@_k;
  wire [8*BEAT-1:0] tx@_data;
  wire [BEAT-1:0] tx@_keep;
  wire tx@_last, tx@_user, tx@_valid;
  reg tx@_ready = 0;
  always #(posedge aclk) begin
    tx@_ready <= $random;
    if (open && tx@_valid && tx@_ready) begin
      if (tx@_at >= EXPECTED) $fatal(1, "port @: a beat beyond the last sum");
      if (tx@_user !== 1'b0 || {tx@_last, tx@_keep} !== sums[tx@_at][9*BEAT:8*BEAT])
        $fatal(1, "port @, beat %0d: another end of a frame", tx@_at);
      for (tx@_k = 0; tx@_k < BEAT; tx@_k = tx@_k + 1)
        if (tx@_keep[tx@_k] && tx@_data[8*tx@_k+:8] !== sums[tx@_at][8*tx@_k+:8])
          $fatal(1, "port @, beat %0d: data %h, not %h", tx@_at, tx@_data,
                 sums[tx@_at][8*BEAT-1:0]);
      tx@_at <= tx@_at + 1;
    end
  end
"""

_BENCH = """\
// A testbench of slackline_node.v that checks itself:
//   iverilog -g2012 -o node slackline_node.v slackline_node_tb.v && vvp node
`timescale 1ns / 1ps
module slackline_node_tb;
  localparam BEAT = {beat}, GIVEN = {given}, EXPECTED = {expected};
  reg aclk = 0, aresetn = 0, open = 0;
  integer cycles = 0;
  reg [9*BEAT:0] sums[0:EXPECTED-1];
  initial $readmemh("slackline_node_tx.hex", sums);
  always #5 aclk = ~aclk;
{streams}
  // Write 1 to the register `control`.
  reg aw_valid = 0, w_valid = 0;
  wire aw_ready, w_ready, b_valid;
  always @(posedge aclk) begin
    cycles <= cycles + 1;
    aresetn <= cycles > 8;
    if (cycles == 16) begin
      aw_valid <= 1;
      w_valid <= 1;
    end else begin
      if (aw_ready) aw_valid <= 0;
      if (w_ready) w_valid <= 0;
    end
    if (b_valid) open <= 1;
    if ({ended}) begin
      $display("PASS: %0d beats of sums at each of {ports} ports in %0d cycles", EXPECTED, cycles);
      $finish;
    end
    if (cycles > {limit}) $fatal(1, "not all sums came in %0d cycles", cycles);
  end

  slackline_node node (
    .aclk(aclk), .aresetn(aresetn),
    .s_axil_awaddr({address}'d{control}), .s_axil_awprot(3'b0), .s_axil_awvalid(aw_valid),
    .s_axil_awready(aw_ready), .s_axil_wdata(32'd1), .s_axil_wstrb(4'hf),
    .s_axil_wvalid(w_valid), .s_axil_wready(w_ready), .s_axil_bvalid(b_valid),
    .s_axil_bready(1'b1), .s_axil_araddr({address}'d0), .s_axil_arprot(3'b0), .s_axil_arvalid(1'b0),
    .s_axil_rready(1'b1),
    {connected}
  );
endmodule
"""
