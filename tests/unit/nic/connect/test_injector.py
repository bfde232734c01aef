"""Tests of the faults that an engine applies to its own sending, and of their times."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from slackline.errors import UsageError
from slackline.faults import parse_all
from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._injector import WHOLE_LINK, Injector, RailDirection
from slackline.nic.connect._rendezvous import EndpointDescriptor

DIRECTION = RailDirection(link=0, rail=1, peer="engine 1", nic_here=1, nic_there=0)
MS = 1_000_000


def descriptors(hosts: int) -> list[EndpointDescriptor]:
    nics = tuple(Interface(name=f"n{i}", address=f"10.0.{i}.1", prefix=24) for i in range(2))
    return [
        EndpointDescriptor(
            engine=f"engine {host}", host=str(host), interfaces=nics, chosen=True, options={}
        )
        for host in range(hosts)
    ]


class Told:
    """A replacement of the engine that records the faults that are set."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int | None]] = []
        self.changed = asyncio.Event()

    def set_fault(self, link: int, rail: int, state: Any) -> None:
        self.calls.append((link, rail, None if state is None else 1))
        self.changed.set()


# Whether the direction has the fault: it leads from NIC 1 of host 0 to NIC 0 of host 1.
ON_A_WAY = {
    "link 0-1 delay 3ms": True,
    "link 1>0 delay 3ms": False,
    "link 0>1 loss 1%": True,
    "link 2-1 down": False,
    "nic 0.1 down": True,
    "nic 0.0 down": False,
    "nic 1.0 rate 8Mbit": True,
    "link 0-1 down from 1s": False,
    "rank 0 kill": False,
}


@pytest.mark.parametrize("text", ON_A_WAY)
def test_a_way_has_the_faults_of_its_link_and_of_both_nics(text: str) -> None:
    async def run() -> None:
        told = Told()
        injector = Injector(parse_all(text), told.set_fault)
        injector.rail_is_up(DIRECTION)
        injector.begin(0, descriptors(3))
        assert told.calls == ([(0, 1, 1)] if ON_A_WAY[text] else [])

    asyncio.run(run())


def test_rails_suffer_from_the_beginning_and_when_they_are_made_again() -> None:
    async def run() -> None:
        told = Told()
        injector = Injector(parse_all("link 0-1 loss 1%"), told.set_fault)
        injector.rail_is_up(DIRECTION)
        assert told.calls == [], "time has not begun"
        injector.begin(0, descriptors(2))
        assert told.calls == [(0, 1, 1)]
        injector.begin(1, descriptors(2))
        injector.rail_is_up(DIRECTION)
        assert told.calls == [(0, 1, 1)] * 2
        injector.rail_is_up(replace(DIRECTION, link=1, rail=WHOLE_LINK, peer="engine 7"))
        assert told.calls == [(0, 1, 1)] * 2, "it is not of the first group"

    asyncio.run(run())


def test_a_fault_begins_and_ends_in_its_time() -> None:
    async def run() -> None:
        told = Told()
        injector = Injector(parse_all("link 0-1 down from 5ms for 5ms"), told.set_fault)
        injector.rail_is_up(DIRECTION)
        injector.begin(0, descriptors(2))
        assert told.calls == []
        for wanted in ([(0, 1, 1)], [(0, 1, 1), (0, 1, None)]):
            await told.changed.wait()
            told.changed.clear()
            assert told.calls == wanted

    asyncio.run(run())


def test_late_changes_are_all_applied_in_their_order() -> None:
    async def run() -> None:
        told = Told()
        now_ns = 3 * MS
        plan = parse_all("link 0-1 down from 5ms for 5ms")
        injector = Injector(plan, told.set_fault, clock=lambda: now_ns)
        injector.rail_is_up(DIRECTION)
        injector.begin(0, descriptors(2))
        now_ns = 100 * MS
        while len(told.calls) < 2:
            told.changed.clear()
            await told.changed.wait()
        assert told.calls == [(0, 1, 1), (0, 1, None)]

    asyncio.run(run())


def test_a_rail_that_is_made_during_a_fault_has_the_fault() -> None:
    async def run() -> None:
        told = Told()
        now_ns = 0
        plan = parse_all("link 0-1 down from 5ms for 60s")
        injector = Injector(plan, told.set_fault, clock=lambda: now_ns)
        injector.rail_is_up(DIRECTION)
        injector.begin(0, descriptors(2))
        now_ns = 5 * MS
        await told.changed.wait()
        injector.rail_is_up(replace(DIRECTION, link=1))
        assert told.calls == [(0, 1, 1), (1, 1, 1)]

    asyncio.run(run())


def test_a_link_that_is_down_is_left_alone() -> None:
    async def run() -> None:
        told = Told()
        injector = Injector(parse_all("link 0-1 down"), told.set_fault)
        injector.rail_is_up(DIRECTION)
        injector.forget(0)
        injector.begin(0, descriptors(2))
        assert told.calls == []

    asyncio.run(run())


def test_a_plan_for_hosts_that_are_not_there_is_refused() -> None:
    injector = Injector(parse_all("link 0-2 down"), Told().set_fault)
    with pytest.raises(UsageError, match=r"2"):
        injector.begin(0, descriptors(2))
