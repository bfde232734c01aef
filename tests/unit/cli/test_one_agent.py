"""Tests of the rendezvous of a job that one torchrun starts."""

import os
from datetime import timedelta

import pytest
from listening import listening
from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from slackline.cli._job._launch import ONE_AGENT, meeting_at
from slackline.cli._job._loopback import ADDRESSES, usable
from slackline.cli._job._one_agent import register

register(ONE_AGENT)


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_store_of_one_agent_listens_at_one_address(address: str) -> None:
    if why := usable(address):
        pytest.skip(f"{address}: {why}")
    given = dict(each.removeprefix("--").split("=", 1) for each in meeting_at(address))
    before = listening([os.getpid()])
    parameters = RendezvousParameters(
        given["rdzv-backend"], "", given["rdzv-id"], 1, 1, given["local-addr"]
    )
    handler = get_rendezvous_handler(parameters)
    info = handler.next_rendezvous()
    place = info.bootstrap_store_info
    assert place is not None
    assert listening([os.getpid()]) - before == {(address, place.master_port)}
    assert (info.rank, info.world_size, handler.use_agent_store) == (0, 1, True)
    assert (place.master_addr, handler.get_backend()) == (address, ONE_AGENT)
    rank = TCPStore(address, place.master_port, timeout=timedelta(seconds=30))
    rank.set("key", "value")
    assert rank.get("key") == b"value"
    info.store.set("agent", "value")
    assert rank.get(f"{handler.get_run_id()}/agent") == b"value"
