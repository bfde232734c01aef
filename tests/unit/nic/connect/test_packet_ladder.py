"""Tests of the packets of growing length that try a path, and of the errors they lead to."""

import pytest

from slackline.nic.connect._packet_ladder import PacketLadder
from slackline.nic.connect._paths import LongestPassed, LongPacketsLostError

ETHERNET = PacketLadder(headers=52, longest=1500)


@pytest.mark.parametrize(
    ("headers", "longest", "packets"),
    [
        (52, 1500, (576, 1000, 1280, 1400, 1450, 1492, 1500)),
        (40, 1400, (576, 1000, 1280, 1400)),
        (72, 9000, (576, 1000, 1280, 1400, 1450, 1492, 1500, 4000, 8000, 9000)),
        (52, 576, ()),
        (0, 1500, ()),
    ],
)
def test_a_ladder_ends_with_the_longest_packet(
    headers: int, longest: int, packets: tuple[int, ...]
) -> None:
    ladder = PacketLadder(headers=headers, longest=longest)
    assert ladder.packets == packets
    assert len(ladder.padding) == sum(packets) - headers * len(packets)


def test_a_long_message_is_cut_into_the_data_of_each_packet() -> None:
    data = bytes(range(256)) * 40
    parts = list(ETHERNET.cut(data))
    assert [len(part) + 52 for part in parts[:-1]] == list(ETHERNET.packets)
    assert b"".join(parts) == data


def test_a_message_that_is_shorter_than_the_ladder_stays_whole() -> None:
    short = b"x" * (len(ETHERNET.padding) - 1)
    assert list(ETHERNET.cut(short)) == [short]


@pytest.mark.parametrize(
    ("arrived_bytes", "found"),
    [
        (524, LongestPassed(arrived=576, vanished=1000)),
        (524 + 948 + 1228 + 1348, LongestPassed(arrived=1400, vanished=1450)),
        (8334 - 1448, LongestPassed(arrived=1492, vanished=1500)),
        (8334, None),
        (525, None),
        (0, None),
        (-1, None),
    ],
)
def test_the_bytes_that_have_arrived_tell_the_first_packet_that_vanished(
    arrived_bytes: int, found: LongestPassed | None
) -> None:
    assert ETHERNET.broken_at(arrived_bytes) == found


def test_the_error_names_both_addresses_and_both_lengths() -> None:
    error = LongPacketsLostError(("10.0.0.1", "10.0.0.2"), LongestPassed(arrived=1, vanished=2))
    assert str(error) == (
        "packets of up to 1 bytes from 10.0.0.1 to 10.0.0.2 arrive, and packets of 2 bytes vanish "
        "without an answer"
    )
