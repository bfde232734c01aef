"""The bytes that the engine and the kernel hold ahead of an urgent frame, from their own limits."""

import slackline._native as _native
from slackline.errors import UsageError

__all__ = ["engine_ahead_bytes"]

_KERNEL_NS = 2_400_000
"""The time of the bytes that the kernel hands to the queue of a NIC. TCP small queues allow 1 ms of
the pacing rate (`sk_pacing_shift` 10); the pacing rate is 1.2 times the congestion window in a
round trip, and slow start lets the window grow to twice the packets in flight. Queues of a lab at
200 Mbit/s held 61 to 73 KB: this limit of 60 KB and one more packet of 12 KB.
Source: tcp_small_queue_check, tcp_update_pacing_rate and tcp_is_cwnd_limited of Linux."""


def engine_ahead_bytes(rate_bps: int, *, urgent: bool = True) -> int:
    """Return the bytes of one TCP connection between hosts that no other frame overtakes.

    The sum of the limits of the rail's queue, of the unsent bytes in the socket, and of the bytes
    that the kernel has handed to the queue of a NIC, for a connection of `rate_bps` bits per second
    on which frames always wait. `urgent` is true if frames with a priority above 0 are sent: the
    engine then holds less at rates up to 500 Mbit/s. Raises UsageError for a rate below 1.
    """
    if rate_bps < 1:
        raise UsageError(f"rate_bps must be positive, not {rate_bps}")
    rate = rate_bps // 8
    return sum(_native.stream_limits(rate, urgent)) + rate * _KERNEL_NS // 10**9
