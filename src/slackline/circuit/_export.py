"""The files of a circuit for a synthesis tool and a driver."""

from collections.abc import Sequence
from pathlib import Path

from slackline.circuit._axi import AxiBlock
from slackline.circuit._convert import convert
from slackline.circuit._lanes import Lanes
from slackline.circuit._node import AggregationNode
from slackline.circuit._options import NodeOptions
from slackline.circuit._registers import c_header, node_registers, register_table

__all__ = ["export"]


def export(options: NodeOptions, folder: Path) -> Sequence[Path]:
    """Writes the node, its registers, and lanes of its width, both behind AXI; returns the files.

    The folder is made if it is missing; files of the same names are replaced.
    """
    registers = node_registers(options)
    texts = {
        "slackline_node.v": convert("slackline_node", AxiBlock(AggregationNode(options))).text,
        "slackline_node.h": c_header(registers),
        "slackline_node.md": register_table(registers),
        "slackline_lanes.v": convert("slackline_lanes", AxiBlock(Lanes(options.lanes))).text,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]
