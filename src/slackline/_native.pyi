"""The native core of Slackline: the NIC engine."""

from collections.abc import Sequence


class Program:
    """One rank's part of a plan, compiled for the engine."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

def program(collective: int, plan: int, ranks: int, rank: int, chunks: int, splits: bool, forwards: bool, adds: bool, instructions: Sequence[tuple[int, int, int, bool]]) -> Program:
    """
    Compile a rank's instructions (verb, peer, chunk, last). Of the whole plan: `splits`, the chunks are parts of one buffer; `forwards`, some rank passes on what it received; `adds`, some rank adds.
    """

def crc32c(data: bytes, seed: int = 0) -> int:
    """CRC32C of `data`, continuing from `seed`."""

class Job:
    """A posted operation."""

    def done(self) -> bool:
        """True once it has finished, well or badly."""

    def wait(self, timeout_ns: int) -> bool:
        """
        Block until finished; False when `timeout_ns` passed first (negative: no limit of its own).
        """

    def failure(self) -> tuple[int, str, int, int, int, int] | None:
        """
        (fault, message, rank, peer, tag, sequence) of a failed operation, else None.
        """

    def watch(self) -> bool:
        """
        Ask for it to appear in next_completion(); True when it has finished already.
        """

    def key(self) -> int:
        """Identity, as next_completion() gives it."""

    def source(self) -> int:
        """Who sent the message of a receive from any source, -1 if unknown."""

class Group:
    """One life of a group of ranks on an engine."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def all_shared(self) -> bool:
        """True when every link is shared memory."""

    def run(self, program: Program, source: int, target: int, count: int, dtype: int, op: int, total_bytes: int, tag: int, priority: int, timeout_ns: int, blocking: bool) -> Job | None:
        """Post an operation on one buffer. None when it is done."""

    def run_chunks(self, program: Program, chunks: Sequence[tuple[int, int, int, int]], dtype: int, op: int, total_bytes: int, tag: int, priority: int, timeout_ns: int, blocking: bool) -> Job | None:
        """
        Post an operation on chunks (chunk, source, target, count). None when it is done.
        """

    def message(self, receives: bool, address: int, count: int, dtype: int, total_bytes: int, peer: int, tag: int, priority: int, timeout_ns: int, blocking: bool) -> Job | None:
        """
        Send to or receive from a peer (-1: receive from any). None when it is done.
        """

    def close(self, timeout_ns: int) -> None:
        """Finish what is outstanding, tell the members, take no more."""

    def abort(self, reason: str) -> None:
        """Fail what is outstanding, here and at the members."""

class Engine:
    """The NIC engine of one rank."""

    def __init__(self, arena_bytes: int, wire_segment_bytes: int, memory_segment_bytes: int, eager_bytes: int, spin_microseconds: int) -> None: ...

    @property
    def arena_fd(self) -> int: ...

    @property
    def arena_bytes(self) -> int: ...

    @property
    def doorbell_fd(self) -> int: ...

    def allocate(self, bytes: int) -> int:
        """Address of registered memory, 0 when there is no room."""

    def free(self, address: int) -> bool: ...

    def contains(self, address: int, bytes: int) -> bool: ...

    def new_ring(self) -> int:
        """Offset of a fresh receive ring in the arena."""

    def add_link(self, name: str) -> int: ...

    def add_stream_rail(self, link: int, fd: int, job: int, checksums: bool) -> None:
        """
        Takes ownership of the connected socket `fd`; `job` is the code that every frame on it carries; `checksums` tells whether its payloads carry one.
        """

    def add_shm_rail(self, link: int, arena_fd: int, arena_bytes: int, doorbell_fd: int, control_fd: int, receive_ring: int, send_ring: int) -> None:
        """Takes ownership of the three descriptors."""

    def link_alive(self, link: int) -> bool: ...

    def open_group(self, epoch: int, rank: int, links: Sequence[int], rank_order: bool) -> Group:
        """links[i] leads to rank i; -1 for the own rank."""

    def next_completion(self) -> int | None:
        """
        Block until a watched operation finishes; None once the engine is closed.
        """

    def counters(self) -> dict[str, int]: ...

    def close(self, timeout_ns: int) -> None: ...
