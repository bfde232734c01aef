"""Tests of the rendezvous: descriptors in the store that are no descriptors."""

import json
from typing import Any

import pytest

from slackline.errors import UsageError
from slackline.nic import NicOptions
from slackline.nic._rendezvous import Record, host_identity, meet
from slackline.testing import MemoryStore

MINE = Record(
    engine="0" * 32,
    host=host_identity(),
    interfaces=(),
    chosen=False,
    options=NicOptions().agreed(),
)


def changed(**fields: Any) -> str:
    return json.dumps(MINE.told() | fields)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[]", "an object was expected, not []"),
        (changed(interfaces="eth0"), "interfaces: a list was expected, not 'eth0'"),
        (changed(interfaces=[["eth0"]]), "interface: ['eth0']"),
        (changed(options=7), "options must be of type dict, not 7"),
        (changed(engine=7), "engine must be of type str, not 7"),
        (changed(device_bytes="7"), "device_bytes must be of type int, not '7'"),
    ],
)
def test_a_descriptor_that_is_none_is_named_with_its_rank(stored: str, why: str) -> None:
    store = MemoryStore()
    store.set("slackline/rank/1", stored)
    with pytest.raises(UsageError) as error:
        meet(store, 0, 2, MINE)
    assert str(error.value) == f"the descriptor of rank 1 in the rendezvous store is wrong: {why}"
    assert (error.value.rank, error.value.peer) == (0, 1)


def test_a_field_that_is_missing_is_named() -> None:
    told = MINE.told()
    del told["host"]
    store = MemoryStore()
    store.set("slackline/rank/1", json.dumps(told))
    with pytest.raises(UsageError, match="missing 1 required keyword-only argument: 'host'"):
        meet(store, 0, 2, MINE)
