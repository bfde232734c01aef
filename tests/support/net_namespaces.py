"""Programs in a network namespace of their own (root)."""

import os
import subprocess
import sys

import pytest

_MADE = os.geteuid() == 0 and (
    subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0
)
needs_namespaces = pytest.mark.skipif(not _MADE, reason="no network namespace may be made")
"""The mark of tests that call `run_inside`: only root may make a namespace."""


def run_inside(prepared: str, program: str, *arguments: str) -> str:
    """Run a Python program in a new network namespace; return its output.

    The shell command `prepared` runs in the namespace first: all of its interfaces are down.
    """
    command = ["unshare", "--net", "sh", "-c", f'{prepared}; exec "$@"', "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", program, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.stdout


def ports(first: int, last: int) -> str:
    """Return the shell command that leaves a loopback interface these ports."""
    return f"ip link set lo up; echo {first} {last} > /proc/sys/net/ipv4/ip_local_port_range"
