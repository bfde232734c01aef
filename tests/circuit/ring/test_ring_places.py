"""Tests that a ring NIC begins a frame only with enough free places (slots) at its successor."""

from typing import Any

import pytest
from mutating import Mutant, make

from slackline.circuit import RingOptions

OPTIONS = RingOptions(lanes=1, slots=4, payload_bytes=128, operations=2)
JOBS = {
    "own data": {"send": 1, "local": 1, "enters": 1},
    "a partial that passes": {"send": 1, "local": 1, "passing": 1},
    "a final made here": {"send": 1, "local": 1, "passing": 1, "enters": 1, "final": 1, "store": 1},
    "a final that passes": {"send": 1, "passing": 1, "final": 1, "store": 1},
    "a final that ends": {"passing": 1, "final": 1, "store": 1},
}
FINALS = ("a final that passes", "a final that ends")
# A frame of this host's data has claimed its slot before its job comes to the datapath.
NEEDS = dict(zip(JOBS, (0, 1, 2, 1, 0), strict=True))


@pytest.fixture(autouse=True)
def amaranth() -> None:
    pytest.importorskip("amaranth", reason="amaranth is missing: slackline-torch[circuit]")


def simulated(circuit: Any, testbench: Any) -> None:
    from amaranth.sim import Simulator

    simulator = Simulator(circuit)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()


def datapath_says() -> dict[tuple[str, int], bool]:
    """Return whether each kind of frame is begun, for each number of free places in its channel."""
    from slackline.circuit.ring._nic import RingDatapath

    said: dict[tuple[str, int], bool] = {}
    for name, bits in JOBS.items():
        datapath = RingDatapath(OPTIONS)

        async def ask(
            ctx: Any, name: str = name, bits: Any = bits, datapath: Any = datapath
        ) -> None:
            jobs, final = datapath.jobs[name in FINALS], bits.get("final", 0)
            ctx.set(datapath.host_room, 1)
            ctx.set(datapath.local_whole, 1)
            ctx.set(jobs.payload, {**bits, "beats": 1})
            ctx.set(jobs.valid, 1)
            for places in (2, 1, 0):
                # The other channel has free places.
                ctx.set(datapath.room, (places > 0) << final | 1 << (1 - final))
                ctx.set(datapath.space, places > 1 or not final)
                said[name, places] = bool(ctx.get(datapath.begun))

        simulated(datapath, ask)
    return said


def window_says() -> list[tuple[int, int]]:
    """Return `room` and `space` of a send window while its places are taken one by one.

    The third place is claimed for a frame that will come later.
    """
    from slackline.circuit.ring._transmitter import RingWindow

    window = RingWindow(OPTIONS.slots)
    said: list[tuple[int, int]] = []

    async def take(ctx: Any) -> None:
        for turn in range(5):
            said.append((ctx.get(window.room), ctx.get(window.space)))
            ctx.set(window.begun, turn != 2)
            ctx.set(window.claimed, turn == 2)
            await ctx.tick()

    simulated(window, take)
    return said


RIGHT = {(name, places): places >= need for name, need in NEEDS.items() for places in (2, 1, 0)}


def test_a_frame_that_comes_into_its_channel_leaves_one_place_free() -> None:
    assert datapath_says() == RIGHT
    assert window_says() == [(1, 1), (1, 1), (1, 1), (1, 0), (0, 0)]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        pytest.param("Mux(job.enters, self.space, self.room[1])", "self.room[1]", id="finals"),
        pytest.param("self.room[0] | job.enters", "self.room[0]", id="own", marks=pytest.mark.slow),
    ],
)
def test_a_datapath_that_counts_places_wrong_is_found(
    right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(
        Mutant("ring._datapath", ("RingDatapath",), ("ring._nic",), right, wrong, str), monkeypatch
    )
    assert datapath_says() != RIGHT


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("used + 1 < slots", "used < slots"), ("claims + self.claimed", "claims")],
    ids=["free", "claimed"],
)
def test_a_window_that_counts_places_wrong_is_found(
    right: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = ("ring._window", ("RingWindow",), ("ring._transmitter",))
    make(Mutant(*window, right, wrong, str), monkeypatch)
    assert window_says() != [(1, 1), (1, 1), (1, 1), (1, 0), (0, 0)]
