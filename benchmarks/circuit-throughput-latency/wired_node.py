"""A simulated node on a virtual interface: processor time of a packet and of its cycles.

Run as a program, within a network namespace of its own, it sums frames through the node and prints
the node's last line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
from _harness.programs import ProgramError
from _harness.report import Row
from closed_loop import frame

from slackline.circuit import NodeOptions
from slackline.errors import UsageError
from slackline.lab import require
from slackline.nic.offload import EthernetNodes

OPTIONS = NodeOptions(ports=2, lanes=4, slots=16, payload_bytes=1024)
ADDRESS = "02:53:4c:00:00:00"
NEAR, FAR = "near", "far"
AT_ONCE = 500
PATIENCE = timedelta(seconds=60)
_INSIDE = 'mount -t sysfs none /sys && exec "$0" -c "$1"'
"""/sys of a network namespace tells the addresses of its own interfaces alone."""
_LINE = re.compile(r"processor time: ([\d.]+) us a packet, and a second for (\d+) cycles")


def packet_rows(frames: int) -> list[Row]:
    """Measure the node's processor time for its packets and for its cycles; needs root."""
    labels = {"part": "node on an interface", "lanes": OPTIONS.lanes, "frames": frames}
    try:
        require()
    except UsageError as error:
        return [Row(labels=labels, skipped=str(error))]
    folder = Path(__file__).parent
    program = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(folder.parent)!r}]"
    program += f"; import wired_node; wired_node.serve({frames})"
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", _INSIDE, sys.executable, program],
        capture_output=True,
        text=True,
    )
    found = _LINE.search(done.stdout)
    if found is None:
        raise ProgramError(f"the node told no processor time: {done.stdout}{done.stderr}")
    values = {"us_a_packet": float(found[1]), "cycles_a_second": int(found[2])}
    return [Row(labels=labels, values=values)]


def serve(frames: int) -> None:
    """Sum frames through a node at the end of a wire; print the node's last line."""
    _ip("link", "add", NEAR, "type", "veth", "peer", "name", FAR)
    for end in (NEAR, FAR):
        _ip("link", "set", end, "addrgenmode", "none")
        _ip("link", "set", end, "up")
    words = f"circuit node --interface {FAR} --ports {OPTIONS.ports} --lanes {OPTIONS.lanes}"
    words += f" --slots {OPTIONS.slots} --payload {OPTIONS.payload_bytes}B"
    command = "import sys; from slackline.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", command, *words.split()], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise ProgramError("the node did not start")
            nodes = EthernetNodes(NEAR, ADDRESS, PATIENCE)
            node = nodes.node(OPTIONS.ports, epoch=0)
            total = np.full(OPTIONS.payload_bytes // 4, 3.0, np.float32).tobytes()
            for first in range(1, frames + 1, AT_ONCE):
                group = range(first, min(first + AT_ONCE, frames + 1))
                sums, _, _ = node.take(
                    [], [(port, frame(OPTIONS, port, n)) for n in group for port in (0, 1)], []
                )
                if len(sums) != len(group) or any(each[-len(total) :] != total for each in sums):
                    raise AssertionError("a sum is wrong")
            node.close()
            nodes.close()
        finally:
            process.terminate()
        print(process.communicate()[0])


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
