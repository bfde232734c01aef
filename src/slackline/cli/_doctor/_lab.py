"""Checks of the requirements of a lab, a virtual network of namespaces on this machine.

Every problem found here is only a note, because a run needs no lab.
"""

import os
import shutil
import subprocess
from pathlib import Path

from slackline.cli._doctor._finding import Finding, Level

__all__ = ["kernel_parts", "lab_findings", "permissions"]

_PARTS = {
    "tbf": "rate 1mbit burst 10k latency 50ms",
    "netem": "delay 1ms",
}
"""The queueing disciplines that a lab uses, each with the parameters of a test."""


def lab_findings() -> list[Finding]:
    """Return the result of every check in this file."""
    tools = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    root = os.geteuid() == 0
    namespaces = root and not tools and _may_set_up_a_namespace()
    findings = [permissions(root, tools, tun=_opens("/dev/net/tun"), namespaces=namespaces)]
    if namespaces:
        findings.append(kernel_parts({part: _works(part) for part in _PARTS}))
    return findings


def permissions(root: bool, missing_tools: list[str], *, tun: bool, namespaces: bool) -> Finding:
    """Check that this process may create the network namespaces and devices of a lab.

    `namespaces` is whether it has created a network namespace and changed an interface there.
    """
    name = "lab"
    if not root:
        return Finding(
            name=name,
            value="not as this user",
            level=Level.NOTE,
            advice="a lab makes network namespaces, which only root may: run `slackline lab` and "
            "`slackline run --lab` as root",
        )
    if missing_tools:
        return Finding(
            name=name,
            value=f"without {missing_tools[0]}",
            level=Level.NOTE,
            advice=f"a lab needs the command {missing_tools[0]!r}",
            command="apt-get install iproute2 util-linux",
        )
    if not namespaces:
        return Finding(
            name=name,
            value="root, without CAP_NET_ADMIN",
            level=Level.NOTE,
            advice="a lab makes network namespaces and sets up their interfaces, which this "
            "process may not: start the container with these capabilities",
            command="docker run --cap-add NET_ADMIN --cap-add SYS_ADMIN ...",
        )
    if not tun:
        return Finding(
            name=name,
            value="root, no /dev/net/tun",
            level=Level.NOTE,
            advice="without /dev/net/tun a lab has rates and cuts, no delays of its own switch",
            command="modprobe tun",
        )
    return Finding(name=name, value="root, namespaces, /dev/net/tun")


def kernel_parts(works: dict[str, bool]) -> Finding:
    """Check which queueing disciplines the kernel has; only a missing tbf is reported.

    A missing netem does no harm, because a lab's own switch can delay and drop packets instead.
    """
    words = {True: "works", False: "is missing"}
    value = ", ".join(f"{part} {words[there]}" for part, there in works.items())
    if works.get("tbf", True):
        return Finding(name="lab's kernel", value=value)
    return Finding(
        name="lab's kernel",
        value=value,
        level=Level.NOTE,
        advice="without tbf a lab cannot limit rates",
        command="modprobe sch_tbf",
    )


def _opens(path: str) -> bool:
    try:
        with Path(path).open("rb+", buffering=0):
            return True
    except OSError:
        return False


def _works(part: str) -> bool:
    """Return whether the kernel accepts a queueing discipline, tried in a temporary namespace."""
    command = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", part]
    command += _PARTS[part].split()
    return subprocess.run(command, check=False, capture_output=True, timeout=10).returncode == 0


def _may_set_up_a_namespace() -> bool:
    """Return whether this process may create a network namespace and set up an interface there."""
    command = ["unshare", "--net", "ip", "link", "set", "dev", "lo", "up"]
    return subprocess.run(command, check=False, capture_output=True, timeout=10).returncode == 0
