"""The simulation of a collective in which all hosts do the same, so that one stands for all.

On equal hosts that begin together, the frames from host -a to host 0 have the same times as the
frames from host 0 to host a.
"""

from slackline.errors import UsageError
from slackline.sim._collective import CollectiveRun
from slackline.sim._execution import Execution
from slackline.sim._fabric import Fabric
from slackline.sim._machine import LIMIT_PS, Machine
from slackline.sim._operation import Operation
from slackline.sim._rotation import Rotation

__all__ = ["check_alike", "simulate_alike"]


def check_alike(operation: Operation, ranks_per_host: int) -> Rotation:
    """Return the plan's cyclic symmetry; raise UsageError where ranks or chunks are not alike."""
    rotation = Rotation.of(operation.plan, ranks_per_host)
    counts = set(operation.chunk_counts)
    if len(counts) > 1:
        raise UsageError(
            f"all chunks must be equal, not of {min(counts)} to {max(counts)} elements: "
            f"{operation.count} elements are cut into {operation.plan.chunks} chunks"
        )
    return rotation


def simulate_alike(
    operation: Operation, fabric: Fabric, *, ranks_per_host: int = 1, limit_ps: int = LIMIT_PS
) -> CollectiveRun:
    """Execute one host's part of a plan in which all hosts do the same.

    The result is that of `simulate_collective` with rank i on host i // ranks_per_host, at a
    fraction of the events; figures of ranks and hosts are those of host 0. `fabric` has one host,
    which stands for all of them. Raises UsageError where the ranks or the chunks are not alike.
    """
    rotation = check_alike(operation, ranks_per_host)
    if len(fabric.hosts) != 1:
        raise UsageError(f"the fabric must have one host for all, not {len(fabric.hosts)} hosts")
    if fabric.shared_cores is not None:
        raise UsageError(f"alike hosts share no cores: shared_cores is {fabric.shared_cores}")
    machine = Machine(fabric, (0,) * ranks_per_host, limit_ps=limit_ps)
    execution = Execution(machine, operation, rotation=rotation)
    for member in range(ranks_per_host):
        machine.at(0, execution.begin, member)
    machine.run(lambda: execution.finished)
    return CollectiveRun(
        ended_ps=tuple(map(execution.ended_ps, range(ranks_per_host))),
        values=(),
        frames=(),
        messages=execution.messages,
        sent_bytes=tuple(machine.core.sent_bytes),
        received_bytes=tuple(machine.core.received_bytes),
        resent_packets=0,
        events=machine.core.executed,
    )
