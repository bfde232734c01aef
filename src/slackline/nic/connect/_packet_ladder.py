"""The trial of a path with packets of growing length, for hosts that believe in a larger MTU.

A router or a tunnel with a smaller MTU than the hosts' NICs drops long packets. It should tell the
sender by ICMP; where a firewall drops ICMP too, short packets arrive and long ones vanish in
silence. A handshake of short messages would succeed there, and the first long message would never
arrive. So each end sends one message of the handshake as packets of growing length:

    packets     576    1000    1280    1400    1450    1492    1500 bytes
    arrived     576    1000    1280    1400     --      --      --
                                       the longest that passes; 1450 is the shortest that vanishes

TCP acknowledges bytes in their order, so the number of acknowledged bytes at the sender, and of
received bytes at the receiver, tells the first packet that has vanished. The packets travel in one
flight, and the trial takes no further round trip.
"""

from __future__ import annotations

import fcntl
import ipaddress
import itertools
import socket
import sys
import termios
from collections.abc import Iterator

from slackline.nic.connect._paths import LongestPassed

__all__ = [
    "PacketLadder",
    "bytes_arrived",
    "lacks_packets",
    "longest_packet",
]

_RUNGS = (576, 1000, 1280, 1400, 1450, 1492, 1500, 4000, 8000)
"""The lengths of IP packets that usual MTUs allow: the least that IPv4 and IPv6 promise, tunnels,
PPPoE, Ethernet, and jumbo frames. The longest packet of the connection follows."""
_IP_HEADER = {socket.AF_INET: 20, socket.AF_INET6: 40}
_TCP_HEADER = 20
_TIMESTAMPS = 12
"""The bytes of TCP's option for timestamps, in every packet of a connection with it."""
_RETRANSMITS, _PROBES, _OPTIONS, _LAST_DATA, _INFO_BYTES = 2, 3, 5, 52, 56
"""The offsets of `tcpi_retransmits`, `tcpi_probes`, `tcpi_options` and `tcpi_last_data_recv` in the
answer of TCP_INFO (linux/tcp.h), and the length of the answer up to there."""
_HAS_TIMESTAMPS = 1
_TIMEOUTS = 2
"""The timeouts in succession after which a packet counts as vanished, not as slow."""
_SILENT_MS = 1500
"""The time without data, in milliseconds, after which the next packet counts as vanished."""


class PacketLadder:
    """The lengths of the packets that try the path of one connection."""

    def __init__(self, *, headers: int, longest: int) -> None:
        """Make the ladder of a connection with `headers` bytes of headers in each IP packet.

        `longest` is the longest IP packet of the connection in bytes. If even the shortest packet
        of the ladder is longer, or there are no headers, the ladder is empty.
        """
        self._headers = headers
        self.packets: tuple[int, ...] = ()
        """The lengths of the IP packets in bytes, in the order in which they are sent."""
        if headers and longest > _RUNGS[0]:
            self.packets = (*(each for each in _RUNGS if each < longest), longest)

    @classmethod
    def of(cls, sock: socket.socket) -> PacketLadder:
        """Return the ladder of a connected socket, empty unless TCP connects it to another host."""
        longest = longest_packet(sock)
        return cls(headers=_headers(sock) if longest else 0, longest=longest)

    @property
    def padding(self) -> str:
        """Padding that makes a message at least as long as all packets together."""
        return "." * self._length

    @property
    def _length(self) -> int:
        """The bytes of data in all packets together."""
        return sum(self.packets) - len(self.packets) * self._headers

    @property
    def _ends(self) -> tuple[int, ...]:
        """The place in the stream at which the data of each packet ends."""
        return tuple(itertools.accumulate(each - self._headers for each in self.packets))

    def cut(self, data: bytes) -> Iterator[bytes]:
        """Yield the data of each packet, and then the rest; all of `data` if it is shorter."""
        begin = 0
        if self.packets and len(data) >= self._length:
            for end in self._ends:
                yield data[begin:end]
                begin = end
        yield data[begin:]

    def broken_at(self, arrived_bytes: int) -> LongestPassed | None:
        """Return the packets at which a message broke off of which so many bytes have arrived.

        Returns None if the message broke off at another place, so that the length of the packets
        is not the cause.
        """
        for number, end in enumerate(self._ends[:-1]):
            if end == arrived_bytes:
                return LongestPassed(
                    arrived=self.packets[number], vanished=self.packets[number + 1]
                )
        return None


def longest_packet(sock: socket.socket) -> int:
    """Return the longest IP packet in bytes that a TCP connection to another host sends; else 0.

    A router may have lowered the length in the packets that open the connection (MSS clamping).
    """
    if sock.family not in _IP_HEADER or _on_one_host(sock):
        return 0
    return _headers(sock) + sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)


def bytes_arrived(sock: socket.socket, sent: int) -> int:
    """Return how many of `sent` bytes have arrived before a packet that vanishes; -1 without one.

    A packet vanishes if TCP has sent it again and again. The kernel counts a packet that a device
    of this host has dropped as a probe.
    """
    info = _info(sock)
    if max(info[_RETRANSMITS], info[_PROBES]) < _TIMEOUTS:
        return -1
    waiting = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    return sent - int.from_bytes(waiting, sys.byteorder)


def lacks_packets(sock: socket.socket) -> bool:
    """Return whether the data of a connection has stopped to come, with no packet for long."""
    return int.from_bytes(_info(sock)[_LAST_DATA:_INFO_BYTES], sys.byteorder) >= _SILENT_MS


def _info(sock: socket.socket) -> bytes:
    """Return the beginning of the kernel's struct tcp_info of a connection."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)


def _headers(sock: socket.socket) -> int:
    """Return the bytes of the IP and TCP headers of a full packet of a connection."""
    timestamps = _TIMESTAMPS if _info(sock)[_OPTIONS] & _HAS_TIMESTAMPS else 0
    return _IP_HEADER[socket.AddressFamily(sock.family)] + _TCP_HEADER + timestamps


def _on_one_host(sock: socket.socket) -> bool:
    """Return whether a connection never leaves this network namespace."""
    ours, theirs = sock.getsockname()[0], sock.getpeername()[0]
    return bool(ours == theirs or ipaddress.ip_address(ours.partition("%")[0]).is_loopback)
