"""Tests of the sentences with which an aggregation node fails when a sum is missing."""

from typing import Any

import numpy as np
import pytest

from slackline.errors import InternalError
from slackline.nic.offload import Nodes
from slackline.wire import Collective, DType, FrameKind, Header, ReduceOp, encode

pytestmark = pytest.mark.timeout(300)
SIZES = "lanes=1,slots=4,payload=64"


def frame(port: int, sequence: int = 1, elements: int = 4, **changes: Any) -> bytes:
    data = np.full(elements, port + 1, np.float32).tobytes()
    fields: dict[str, Any] = {
        "kind": FrameKind.DATA,
        "epoch": 5,
        "source": port,
        "dtype": DType.FLOAT32,
        "collective": Collective.ALL_REDUCE,
        "reduce_op": ReduceOp.SUM,
        "sequence": sequence,
        "total": len(data),
        "length": len(data),
    }
    return encode(Header(**(fields | changes))) + data


@pytest.fixture(params=["twin", pytest.param("circuit", marks=pytest.mark.simulates)])
def node(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip("numpy")
    made = Nodes(request.param, 3, SIZES)._open(3, 5)
    yield made
    made.close()


def test_a_node_adds_sets_of_frames(node: Any) -> None:
    sets = [[frame(port, number) for port in range(3)] for number in (1, 2)]
    assert [np.frombuffer(each[64:], np.float32).tolist() for each in node.add(sets)] == [
        [6.0] * 4
    ] * 2


def test_the_error_says_in_which_field_frames_differ(node: Any) -> None:
    frames = [frame(0), frame(1), frame(2, elements=3)]
    with pytest.raises(InternalError) as caught:
        node.add([frames])
    assert str(caught.value) == (
        "the node does not add frames that differ: total is 16 at port 0 and 12 at port 2; "
        "length is 16 at port 0 and 12 at port 2"
    )


def test_the_error_names_the_port_whose_frame_was_dropped(node: Any) -> None:
    with pytest.raises(InternalError) as caught:
        node.add([[frame(0), frame(1, epoch=4), frame(2)]])
    said = str(caught.value)
    assert said.startswith("the node gave 0 of 1 sums; its counters: port 1: 1 foreign")
    assert "port 0" not in said
    assert "port 2" not in said
