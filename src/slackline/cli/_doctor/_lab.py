"""Checks of the requirements of a lab, a virtual network of namespaces on this machine.

Every problem found here is only a note, because a run needs no lab.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from slackline.cli._doctor._finding import Finding, Level
from slackline.errors import UsageError

__all__ = ["kernel_parts", "lab_findings", "permissions"]

_PARTS = {
    "tbf": "rate 1mbit burst 10k latency 50ms",
    "netem": "delay 1ms",
}
"""The queueing disciplines that a lab uses, each with the parameters of a test."""


def lab_findings(container: str) -> list[Finding]:
    """Return the result of every check in this file.

    `container` is the engine of the container that this process runs in; "" outside of one.
    """
    from slackline.lab import lacking_capabilities, trial  # No other check needs a lab's modules.

    tools = [tool for tool in ("ip", "bridge", "tc", "unshare") if shutil.which(tool) is None]
    root = os.geteuid() == 0
    lacking = lacking_capabilities()
    failed = ""
    if root and not tools and not lacking:
        try:
            trial()
        except UsageError as error:
            failed = str(error)
    found = permissions(
        root=root,
        missing_tools=tools,
        lacking=lacking,
        failed=failed,
        tun=_opens("/dev/net/tun"),
        container=container,
    )
    if not root or tools or lacking or failed:
        return [found]
    return [found, kernel_parts({part: _works(part) for part in _PARTS}, container)]


def permissions(
    *,
    root: bool,
    missing_tools: Sequence[str],
    lacking: Sequence[str],
    failed: str,
    tun: bool,
    container: str,
) -> Finding:
    """Check that this process may create the network namespaces and devices of a lab.

    `lacking` are the capabilities that it lacks, and `failed` says why it could not make a network
    namespace with a pair of NICs, "" if it made one.
    """
    name = "lab"
    place = f" in a container ({container})" if container else ""

    def note(value: str, advice: str, command: str = "") -> Finding:
        return Finding(
            name=name, value=value + place, level=Level.NOTE, advice=advice, command=command
        )

    if not root:
        return note(
            "not as this user",
            "a lab makes network namespaces, which only root may: run `slackline lab` and "
            "`slackline run --lab` as root",
        )
    if missing_tools:
        return note(
            f"without {missing_tools[0]}",
            f"a lab needs the command {missing_tools[0]!r}",
            "apt-get install iproute2 util-linux",
        )
    if lacking:
        added = " ".join(f"--cap-add {each.removeprefix('CAP_')}" for each in lacking)
        return note(
            f"root, without {' and '.join(lacking)}",
            "a lab makes network namespaces and sets up their interfaces, which this process may "
            f"not: start {'the container' if place else 'it'} with {' and '.join(lacking)}",
            f"docker run {added} ..." if place else "",
        )
    if failed:
        return note("cannot be made", failed)
    if not tun:
        advice = "without /dev/net/tun a lab has rates and cuts, no delays of its own switch"
        if place:
            return note(
                "root, no /dev/net/tun",
                f"{advice}: give the device to the container, whose host needs the module tun",
                "docker run --device /dev/net/tun ...",
            )
        return note("root, no /dev/net/tun", advice, "modprobe tun")
    return Finding(name=name, value=f"root, namespaces, /dev/net/tun{place}")


def kernel_parts(works: dict[str, bool], container: str = "") -> Finding:
    """Check which queueing disciplines the kernel has; only a missing tbf is reported.

    A missing netem does no harm, because a lab's own switch can delay and drop packets instead.
    """
    words = {True: "works", False: "is missing"}
    value = ", ".join(f"{part} {words[there]}" for part, there in works.items())
    if works.get("tbf", True):
        return Finding(name="lab's kernel", value=value)
    advice = "without tbf a lab cannot limit rates"
    return Finding(
        name="lab's kernel",
        value=value,
        level=Level.NOTE,
        advice=f"{advice}: load the module sch_tbf on the container's host"
        if container
        else advice,
        command="" if container else "modprobe sch_tbf",
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
