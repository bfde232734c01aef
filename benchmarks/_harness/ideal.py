"""The shortest times that the wire allows; every percentage of a wire is computed with them.

A NIC of `rate` bits a second carries Ethernet frames. TCP with time stamps puts 1448 bytes of
payload into a frame of 1514, so a program can get at most 1448/1514 of the rate. The token buckets
of a lab count the same 1514 bytes. In an allreduce every rank has to send, and to receive, 2(n-1)/n
times its buffer, whatever the plan.
"""

from __future__ import annotations

PAYLOAD_BYTES = 1448
"""The payload of a full frame: 1500 bytes minus 20 of IP, 20 of TCP and 12 of its time stamp."""
FRAME_BYTES = 1514
"""The size of a full frame in bytes, with Ethernet's header of 14 bytes."""


def goodput_bps(rate_bps: int) -> float:
    """Return the bits of payload that a NIC of `rate_bps` carries in a second, each way."""
    return rate_bps * PAYLOAD_BYTES / FRAME_BYTES


def sent_bytes(nbytes: int, ranks: int) -> float:
    """Return the bytes that each rank sends, and receives, in an allreduce of `nbytes`."""
    return 2 * (ranks - 1) / ranks * nbytes


def allreduce_seconds(nbytes: int, ranks: int, rate_bps: int, nics: int = 1) -> float:
    """Return the shortest time of an allreduce, in which all NICs send and receive all the time."""
    return sent_bytes(nbytes, ranks) * 8 / (goodput_bps(rate_bps) * nics)


def percent_of_wire(
    nbytes: int, calls: int, seconds: float, ranks: int, rate_bps: int, nics: int = 1
) -> float:
    """Return the percentage of the wire that `calls` allreduces of `nbytes` used.

    The allreduces took `seconds` together.
    """
    return 100 * calls * allreduce_seconds(nbytes, ranks, rate_bps, nics) / seconds


def seconds_with_cut(
    nbytes: int, ranks: int, rate_bps: int, nics: int, cut_seconds: float
) -> float:
    """Return the shortest time of an allreduce during which one rank loses one of its NICs.

    Until the cut, `cut_seconds` after the start, every rank moves nics * goodput. From then on the
    rank with the cut has nics - 1 NICs left. All other ranks wait for this rank, because each rank
    sends it a part of the sum and receives a part from it. The time is therefore

        cut + (sent_bytes - nics * goodput * cut) / ((nics - 1) * goodput)

    if no data in flight at the cut has to be sent again, and the cut is noticed at once.
    """
    per_second = goodput_bps(rate_bps) / 8
    left = sent_bytes(nbytes, ranks) - nics * per_second * cut_seconds
    return cut_seconds + max(0.0, left) / ((nics - 1) * per_second)
