"""The stage of a port: a circuit of one's own between a rank's frames and the port's checks."""

from amaranth.lib import wiring

from slackline.circuit.options import NodeOptions

__all__ = ["port_stage"]


def port_stage(options: NodeOptions) -> wiring.Component | None:
    """Return the stage for one port of a node, or None for a port without a stage.

    A stage has a stream `i` of Beat(options.lanes), which gives whole frames, header first, and
    such a stream `o`. What it passes on must be what `slackline.circuit.twins` says of it. A stage
    is reset with the node's buffers.
    """
    return None
