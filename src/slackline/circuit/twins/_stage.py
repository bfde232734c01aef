"""The twin of the stage of a port: see slackline.circuit.node."""

__all__ = ["port_stage"]


def port_stage(frame: bytes, bad: bool) -> tuple[bytes, bool]:
    """Return what the stage makes of a frame, and whether it marks the frame as damaged."""
    return frame, bad
