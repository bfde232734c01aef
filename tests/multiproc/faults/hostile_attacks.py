"""The attacks of a hostile member of a group, and of programs outside the job.

An attack of a member is a function of the HostilePeer. An attack from outside is a function of the
victim's rendezvous record, of a random generator and of a list that keeps the open sockets.
"""

import fcntl
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator, Mapping

from fault_proxy import loopback
from hostile_peer import HostilePeer, flood, sealed

from slackline.nic.connect._handshake import fresh_nonce
from slackline.nic.connect._listener import unix_name
from slackline.nic.connect._messages import Hello, TransportParameters, frame, text_of
from slackline.nic.connect._rendezvous import EndpointDescriptor
from slackline.nic.connect._tls import Identity
from slackline.nic.offload._aggregation_protocol import AggregationRequest
from slackline.wire import FIELDS, FrameFlag, FrameKind

Attack = Callable[[HostilePeer], None]
Strangers = Callable[[EndpointDescriptor, random.Random, list[socket.socket]], None]

FLOOD_BYTES = 64 << 20
PIECE_FRAMES = 16384
HALF_OPEN = 400
ARENA_BYTES = 4 << 20
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def hang_up(peer: HostilePeer) -> None:
    """End the connection after the handshake."""
    sock, _ = peer.dial("tcp", TransportParameters())
    sock.close()


def end_in_a_frame(peer: HostilePeer) -> None:
    """End the connection in the middle of a frame."""
    sock, _ = peer.dial("tcp", TransportParameters())
    data = peer.numbered(*peer.hear(sock))
    sock.sendall(data[: peer.rng.randrange(1, len(data))])
    sock.shutdown(socket.SHUT_WR)


def stop_in_a_frame(peer: HostilePeer) -> None:
    """Send a part of a frame and then nothing any more."""
    sock, _ = peer.dial("tcp", TransportParameters())
    data = peer.numbered(*peer.hear(sock))
    sock.sendall(data[: peer.rng.randrange(1, len(data))])


def damage(peer: HostilePeer) -> None:
    """Answer some frames of the victim with right frames, and the later ones with wrong bits."""
    sock, _ = peer.dial("tcp", TransportParameters())
    honest = peer.rng.randrange(6)
    while True:
        data = bytearray(peer.numbered(*peer.hear(sock)))
        if honest <= 0:
            data[peer.rng.randrange(len(data))] ^= 1 << peer.rng.randrange(8)
        honest -= 1
        sock.sendall(data)


def wrong_sizes(peer: HostilePeer) -> None:
    """Answer with a frame in which one length or offset is far too large."""
    sock, _ = peer.dial("tcp", TransportParameters())
    fields, payload = peer.hear(sock)
    wrong = peer.rng.choice(("length", "offset", "total", "chunk", "source"))
    width = 8 * next(field.width for field in FIELDS if field.name == wrong)
    value = peer.rng.choice(((1 << width) - 1, 1 << (width - 1), peer.rng.getrandbits(width)))
    sock.sendall(peer.numbered(fields, payload, **{wrong: value}))
    sock.sendall(bytes(100_000))


def random_frames(peer: HostilePeer) -> None:
    """Send frames with right checksums and random fields, near those of the victim."""
    sock, _ = peer.dial("tcp", TransportParameters())
    fields, _ = peer.hear(sock)
    rng = peer.rng
    for _ in range(2000):
        changed = {
            field.name: rng.choice((rng.getrandbits(8 * field.width), rng.randrange(9)))
            for field in FIELDS[3:-1]
            if field.name not in ("job", "length") and rng.random() < 0.2
        }
        changed.setdefault("kind", rng.randrange(1, 10))
        sock.sendall(peer.numbered(fields, rng.randbytes(rng.choice((0, 8, 300))), **changed))


def _flood(sock: socket.socket, data: bytes) -> None:
    """Send a frame again and again, and read nothing."""
    flood(sock, data * PIECE_FRAMES, FLOOD_BYTES // (len(data) * PIECE_FRAMES))


def unread_probes(peer: HostilePeer) -> None:
    """Ask for the answers to a million probes, and read none of them."""
    sock, _ = peer.dial("tcp", TransportParameters())
    peer.hear(sock)
    _flood(sock, peer.bare(FrameKind.PROBE))


def piled_byes(peer: HostilePeer) -> None:
    """Send a BYE frame that overtakes another frame, and then a million BYEs without a number."""
    sock, _ = peer.dial("tcp", TransportParameters())
    fields, _ = peer.hear(sock)
    bye = {"kind": FrameKind.BYE, "epoch": fields["epoch"]}
    sock.sendall(peer.numbered(bye, sequence=5))
    _flood(sock, peer.bare(**bye))


def repeated_requests(peer: HostilePeer) -> None:
    """Ask a million times for a grant of an operation that the victim has posted."""
    sock, _ = peer.dial("tcp", TransportParameters())
    fields, _ = peer.hear(sock)
    fields |= {"kind": FrameKind.GRANT, "flags": FrameFlag.EAGER, "job": peer.job, "source": 0}
    _flood(sock, sealed(fields | {"sequence": 0, "acknowledge": 0}))


def repeated_frame(peer: HostilePeer) -> None:
    """Repeat the same frame a million times."""
    sock, _ = peer.dial("tcp", TransportParameters())
    _flood(sock, peer.numbered(*peer.hear(sock)))


def unasked_data(peer: HostilePeer) -> None:
    """Send data of operations that nobody has posted."""
    sock, _ = peer.dial("tcp", TransportParameters())
    fields, _ = peer.hear(sock)
    for number in range(3000):
        changed = {"tag": fields["tag"] + number + 100, "flags": FrameFlag.EAGER, "total": 8192}
        sock.sendall(peer.numbered(fields, bytes(8192), **changed))


def random_datagrams(peer: HostilePeer) -> None:
    """Send random datagrams over an authenticated UDP rail."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        port = udp.getsockname()[1]
        sizes = TransportParameters(
            port=port, packet_bytes=peer.rng.choice((0, 1, 60, 1400, 65507))
        )
        _, session = peer.dial("udp", sizes)
        udp.connect(("127.0.0.1", session.theirs.port))
        heard = udp.recv(65536)
        for _ in range(5000):
            data = bytearray(heard)
            data[peer.rng.randrange(len(data))] ^= 1 << peer.rng.randrange(8)
            udp.send(peer.rng.choice((data, data[:20], peer.rng.randbytes(64), heard)))


def _memory(size: int, *, seals: int = SIZE_SEALS, flags: int = 0) -> int:
    """Return a new memfd of this size and with these seals."""
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | flags)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _shared(
    peer: HostilePeer, arena: int, terms: TransportParameters, doorbell: int | None = None
) -> None:
    """Complete a handshake over shared memory with an arena and a doorbell of any kind."""
    bell = os.eventfd(0, os.EFD_NONBLOCK) if doorbell is None else doorbell
    peer.keep(arena, bell)
    peer.dial("shm", terms, (arena, bell))


def small_arena(peer: HostilePeer) -> None:
    """Send an arena that is smaller than its announced size."""
    _shared(peer, _memory(ARENA_BYTES), TransportParameters(arena_bytes=ARENA_BYTES * 2, ring=4096))


def no_arena(peer: HostilePeer) -> None:
    """Announce an arena of 0 bytes."""
    _shared(peer, _memory(ARENA_BYTES), TransportParameters(arena_bytes=0, ring=4096))


def vast_arena(peer: HostilePeer) -> None:
    """Announce an arena that is larger than any address space."""
    vast = 1 << 62
    _shared(peer, _memory(vast), TransportParameters(arena_bytes=vast, ring=4096))


def shrinking_arena(peer: HostilePeer) -> None:
    """Send an arena that may shrink while the victim reads it."""
    _shared(
        peer, _memory(ARENA_BYTES, seals=0), TransportParameters(arena_bytes=ARENA_BYTES, ring=4096)
    )


def ring_outside(peer: HostilePeer) -> None:
    """Announce a ring at the end of the arena, or behind its end."""
    place = peer.rng.choice((ARENA_BYTES - 64, ARENA_BYTES, (1 << 63) - 64))
    _shared(peer, _memory(ARENA_BYTES), TransportParameters(arena_bytes=ARENA_BYTES, ring=place))


def ring_within_a_line(peer: HostilePeer) -> None:
    """Announce a ring at an address that is not aligned for atomic counters."""
    place = 4096 + peer.rng.randrange(1, 64)
    _shared(peer, _memory(ARENA_BYTES), TransportParameters(arena_bytes=ARENA_BYTES, ring=place))


def unbacked_arena(peer: HostilePeer) -> None:
    """Send an arena of huge pages that the machine does not have."""
    size = 256 << 20
    arena = _memory(size, flags=os.MFD_HUGETLB)
    _shared(peer, arena, TransportParameters(arena_bytes=size, ring=4096))


def pipe_for_a_doorbell(peer: HostilePeer) -> None:
    """Send a pipe, to which a write may block, in place of a doorbell."""
    end, pipe = os.pipe()
    peer.keep(end)
    _shared(
        peer, _memory(ARENA_BYTES), TransportParameters(arena_bytes=ARENA_BYTES, ring=4096), pipe
    )


def one_descriptor(peer: HostilePeer) -> None:
    """Send an arena without a doorbell."""
    arena = _memory(ARENA_BYTES)
    peer.keep(arena)
    peer.dial("shm", TransportParameters(arena_bytes=ARENA_BYTES, ring=4096), (arena,))


def silent_memory(peer: HostilePeer) -> None:
    """Send a correct arena and a correct doorbell, and then nothing."""
    _shared(peer, _memory(ARENA_BYTES), TransportParameters(arena_bytes=ARENA_BYTES, ring=4096))


def wild_ring(peer: HostilePeer) -> None:
    """Write random counters and random bytes to the ring that the victim sends to."""
    arena = _memory(ARENA_BYTES)
    _shared(peer, arena, TransportParameters(arena_bytes=ARENA_BYTES, ring=4096))
    for _ in range(1000):
        os.pwrite(arena, peer.rng.randbytes(128), 4096 + peer.rng.randrange(0, 4096, 8))


def descriptors_for_tcp(peer: HostilePeer) -> None:
    """Ask for a TCP rail over the Unix socket, and send descriptors, which no TCP rail has."""
    arena = _memory(ARENA_BYTES)
    peer.keep(arena)
    peer.dial("tcp", TransportParameters(), (arena, arena), local=True)


def _certificate() -> bytes:
    return Identity("hostile").certificate


def no_certificate(peer: HostilePeer) -> None:
    """Send an empty certificate, with which no TLS can begin."""
    peer.dial("tcp", TransportParameters())


def no_real_certificate(peer: HostilePeer) -> None:
    """Send a certificate whose end is missing or wrong."""
    right = _certificate()
    cut = right[: peer.rng.randrange(1, len(right))]
    peer.dial(
        "tcp", TransportParameters(), certificate=peer.rng.choice((cut, right + b"0", cut + right))
    )


def no_tls(peer: HostilePeer) -> None:
    """Send random bytes in place of TLS, or nothing."""
    sock, _ = peer.dial("tcp", TransportParameters(), certificate=_certificate())
    sock.sendall(peer.rng.randbytes(peer.rng.choice((0, 5, 300, 100_000))))


def other_certificate(peer: HostilePeer) -> None:
    """Begin TLS with a certificate that differs from the announced certificate."""
    sock, session = peer.dial("tcp", TransportParameters(), certificate=_certificate())
    context = Identity("another").context(session.certificate, server=False)
    with context.wrap_socket(sock) as tls:
        tls.recv(1)


def damage_under_tls(peer: HostilePeer) -> None:
    """Send random bytes through TLS in place of frames."""
    mine = Identity("hostile")
    sock, session = peer.dial("tcp", TransportParameters(), certificate=mine.certificate)
    with mine.context(session.certificate, server=False).wrap_socket(sock) as tls:
        while True:
            tls.sendall(peer.rng.randbytes(peer.rng.randrange(1, 300)))


OVER_TLS: tuple[Attack, ...] = (
    no_certificate,
    no_real_certificate,
    no_tls,
    other_certificate,
    damage_under_tls,
    descriptors_for_tcp,
)
OVER_TCP: tuple[Attack, ...] = (
    descriptors_for_tcp,
    hang_up,
    end_in_a_frame,
    stop_in_a_frame,
    damage,
    wrong_sizes,
    random_frames,
    unread_probes,
    piled_byes,
    repeated_requests,
    repeated_frame,
    unasked_data,
)
OVER_UDP: tuple[Attack, ...] = (random_datagrams,)
OVER_MEMORY: tuple[Attack, ...] = (
    small_arena,
    no_arena,
    vast_arena,
    shrinking_arena,
    ring_outside,
    ring_within_a_line,
    unbacked_arena,
    pipe_for_a_doorbell,
    one_descriptor,
    silent_memory,
    wild_ring,
)


def half_open(victim: EndpointDescriptor, rng: random.Random, kept: list[socket.socket]) -> None:
    """Begin hundreds of handshakes and finish none."""
    hello = frame(text_of(_hello(victim, rng)), rng.getrandbits(32))
    for sock in _connections(victim, HALF_OPEN, kept):
        sock.sendall(hello[: rng.randrange(len(hello) + 1)])


def wrong_hellos(victim: EndpointDescriptor, rng: random.Random, kept: list[socket.socket]) -> None:
    """Send HELLO frames with wrong bits, wrong lengths, too many bytes or random bytes."""
    for sock in _connections(victim, 100, kept):
        hello = bytearray(frame(text_of(_hello(victim, rng)), rng.getrandbits(32)))
        hello[rng.randrange(len(hello))] ^= 1 << rng.randrange(8)
        length = rng.choice((0, 1, 8192, 8193, (1 << 32) - 1))
        told = sealed({"kind": FrameKind.HELLO, "length": length}, rng.randbytes(9000))
        _send(sock, rng.choice((bytes(hello), told, rng.randbytes(5000))))


def ask_wrongly(node: tuple[str, int], rng: random.Random, kept: list[socket.socket]) -> None:
    """Send an aggregator hundreds of random parts of correct and of wrong requests."""
    for number in range(HALF_OPEN):
        sock = socket.create_connection(node)
        kept.append(sock)
        ask = bytearray(AggregationRequest(nonce=fresh_nonce(), workers=rng.randrange(256)).write())
        if number % 2:
            ask[rng.randrange(len(ask))] ^= 1 << rng.randrange(8)
        told = frame(bytes(ask), 0) + rng.randbytes(rng.randrange(200))
        _send(sock, told[: rng.randrange(len(told) + 1)])


def _connections(
    victim: EndpointDescriptor, count: int, kept: list[socket.socket]
) -> Iterator[socket.socket]:
    """Yield new connections to the victim's listeners, TCP and Unix in turn."""
    (lo,) = loopback(victim.told())
    for number in range(count):
        if number % 2:
            sock = socket.create_connection(("127.0.0.1", lo.port))
        else:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(unix_name(victim.engine))
        kept.append(sock)
        yield sock


def _send(sock: socket.socket, data: bytes) -> None:
    """Send data to a listener, which may close the connection before the end of the data."""
    try:
        sock.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        return


def _hello(victim: EndpointDescriptor, rng: random.Random) -> Hello:
    kind = rng.choice(("shm", "tcp", "udp", "liveness", "news"))
    mine = rng.randbytes(16).hex()
    return Hello(engine=mine, peer=victim.engine, rail=0, kind=kind, nonce=fresh_nonce())


def spoofed_datagrams(ends: Mapping[int, int], rng: random.Random, count: int) -> None:
    """Send datagrams to UDP sockets of this host that seem to come from their peers.

    `ends` maps the port of each connected socket to the port of its peer. Needs root.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw:
        for _ in range(count):
            port = rng.choice(sorted(ends))
            data = rng.randbytes(rng.choice((0, 1, 31, 32, 64, 300, 1400)))
            head = struct.pack("!HHHH", ends[port], port, 8 + len(data), 0)
            raw.sendto(head + data, ("127.0.0.1", port))
