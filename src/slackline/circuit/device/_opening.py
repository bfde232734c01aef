"""The choice of a ring device: the twin (a Python model), or the simulated circuit."""

from slackline.circuit.device._circuit import RingCircuit
from slackline.circuit.device._interface import RingDevice
from slackline.circuit.device._operation import RingPlace
from slackline.circuit.device._twin import RingTwin
from slackline.circuit.options import RingOptions
from slackline.errors import UsageError

__all__ = ["open_ring_device"]


def open_ring_device(
    kind: str,
    options: RingOptions,
    *,
    rank: int,
    ranks: int,
    job: int,
    epoch: int,
    plan_id: int,
) -> RingDevice:
    """Open a ring device of a kind: "twin" is a Python model, "circuit" a simulation by Verilator.

    A circuit is compiled at its first use. Raises UsageError for another kind, and when the tools
    for a simulation are missing.
    """
    place = RingPlace(rank=rank, ranks=ranks, job=job, epoch=epoch, plan_id=plan_id)
    if kind == "twin":
        return RingTwin(options, place)
    if kind == "circuit":
        return RingCircuit(options, place)
    raise UsageError(f"a ring device must be 'twin' or 'circuit', not {kind!r}")
