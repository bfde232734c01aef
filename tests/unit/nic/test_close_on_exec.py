"""Test that no descriptor of an engine stays open in a program that a rank starts."""

import fcntl
import os

import pytest

from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks

KINDS = {"shm": ("off", ("shm",)), "wires": ("off", ("tcp", "udp")), "tls": ("require", ("tcp",))}


def inherited() -> dict[str, str]:
    """Return the descriptors that a program would inherit, by number, with what they are."""
    found = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            if not fcntl.fcntl(int(fd), fcntl.F_GETFD) & fcntl.FD_CLOEXEC:
                found[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # It was the descriptor of the listing, or another thread closed it.
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_descriptor_of_a_rank_is_closed_on_exec(kind: str) -> None:
    tls, rails = KINDS[kind]
    if tls == "require":
        pytest.importorskip("cryptography", reason="TLS needs the package cryptography")
    before = inherited()

    def body(group: Group) -> dict[str, str]:
        group.barrier(blocking=True)
        found = inherited()
        group.barrier(blocking=True)
        return found

    options = NicOptions(rails=rails, arena_bytes=64 << 20, tls=tls)
    for found in run_ranks(2, body, options=options):
        assert found.keys() <= before.keys(), found
