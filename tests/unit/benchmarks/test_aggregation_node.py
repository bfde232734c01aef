"""Tests of the aggregation node of benchmarks: it listens, or the benchmark ends with its error."""

import socket
from collections.abc import Sequence

import pytest
from _harness.aggregation_node import aggregation_node
from _harness.programs import ProgramError


class ThisHost:
    """Runs the programs of all hosts on this host."""

    def address(self, host: int, /) -> str:
        return "127.0.0.1"

    def command(self, host: int, argv: Sequence[str], /) -> list[str]:
        return list(argv)


def test_the_node_listens_at_its_address() -> None:
    with aggregation_node(ThisHost(), 0, workers=2) as address:
        host, _, port = address.rpartition(":")
        socket.create_connection((host, int(port)), timeout=30).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=30)


def test_a_node_that_does_not_start_ends_the_benchmark_with_its_own_error() -> None:
    with (
        pytest.raises(ProgramError, match="did not start: slackline: workers must be 2 to 255"),
        aggregation_node(ThisHost(), 0, workers=0),
    ):
        pytest.fail("the node has started")
