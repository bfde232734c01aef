"""
The native core of Slackline: the NIC engine, and the machine of the simulator.
"""

from collections.abc import Iterable, Sequence


class PathCounters:
    @property
    def source(self) -> int: ...

    @property
    def target(self) -> int: ...

    @property
    def nic(self) -> int: ...

    @property
    def frames(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def lost(self) -> int: ...

    @property
    def duplicated(self) -> int: ...

    @property
    def reordered(self) -> int: ...

    @property
    def corrupted(self) -> int: ...

    @property
    def unplugged(self) -> int: ...

    @property
    def overflowed(self) -> int: ...

class Switch:
    def __init__(self, hosts: int, nics: int, rate: int) -> None:
        """`rate`: bytes a second to each NIC, 0 for no limit."""

    def add_nic(self, namespace_path: str, name: str) -> None:
        """
        Make a NIC in its host's namespace; all of them, host by host, before `run`.
        """

    def run(self) -> None:
        """Forward frames until `stop`, or until a namespace has gone."""

    def stop(self) -> None: ...

    def apply(self, paths: Sequence[tuple[int, int, int, int, int, int, float, float, float, float, bool, int]], ports: Sequence[tuple[int, int, int, bool]]) -> None:
        """
        From now on these faults and no others: (from, to, nic, delay_ns, jitter_ns, rate, loss, duplicate, reorder, corrupt, down, seed) and (host, nic, rate, down); rates in bytes a second, 0 for no limit.
        """

    def counters(self) -> list[PathCounters]: ...

    @property
    def refused(self) -> int: ...

def ring_flows(hosts: Sequence[tuple[int, int, int, int, int, int, int, int, int, int, int, int]], starts_ps: Sequence[int]) -> list[int]:
    """
    The time in picoseconds at which each host of a ring has the result of an all_reduce. A host has the times begin, begin_last, step, head, switched, latency, add, copy, cores_add, cores_copy, spread and spread_last, and begins that much later.
    """

def ring_flows_alike(host: tuple[int, int, int, int, int, int, int, int, int, int, int, int], hosts: int) -> int:
    """The same for so many hosts that are alike."""

class SimulatedPlan:
    """A plan in the form that simulations run."""

    def __init__(self, ranks: int, cuts: Sequence[tuple[int, int, int]], itemsize: int, widest_itemsize: int, onset: int, priority: int, reduces: bool, rotation: tuple[int, int, bool] | None, programs: Iterable[object]) -> None:
        """
        `cuts` has (most, full, rest) for each chunk, `programs` the instructions (kind, peer, chunk, last) of each member.
        """

class SimulatedMachine:
    """One clock, the wires, and the threads of every member."""

    def __init__(self, hosts: Sequence[tuple[Sequence[int], int, int, int, int, int, int]], framing: tuple[int, int, int], forwards_after_bytes: int | None, resend_ps: int, placement: Sequence[int], faulty: bool, deliver: object, settle: object, state: object, draw: object) -> None:
        """
        `deliver(token, member)` is called for events, tasks and ends of members, `settle()` after all events of a time, `state` and `draw` where the network has faults.
        """

    @property
    def now_ps(self) -> int: ...

    @property
    def executed(self) -> int: ...

    @property
    def sent_bytes(self) -> list[int]: ...

    @property
    def received_bytes(self) -> list[int]: ...

    @property
    def resent_packets(self) -> int: ...

    def at(self, time_ps: int, token: int) -> None:
        """Deliver a token at a time that has not passed."""

    def compute(self, member: int, work_ps: int, token: int) -> None:
        """
        Deliver a token after so much work of the thread of a member that computes.
        """

    def condition(self, member: int, numerator: int, denominator: int, stopped: bool) -> None:
        """
        Set how many times slower than usual a member works, and whether it stands still.
        """

    def set_rate(self, host: int, nic: int, rate_bps: int) -> None: ...

    def change(self) -> None:
        """
        Ask for the states of paths anew; what is under way on those that are down is lost.
        """

    def execute(self, plan: SimulatedPlan, members: Sequence[int], token: int, records: bool = False, values: object | None = None) -> SimulatedExecution:
        """
        Prepare an execution; the token is delivered with each member that has ended. `values` adds and folds values by their numbers.
        """

    def run(self, limit_ps: int) -> None:
        """Run events until `stop`, until there are none, or past the limit."""

    def stop(self) -> None:
        """Let `run` return after all events of this time."""

    def waiting(self) -> list[tuple[int, int]]:
        """The source and the target of every frame that waits in a queue."""

class SimulatedExecution:
    """An operation on members of a machine."""

    def begin(self, member: int) -> None: ...

    @property
    def finished(self) -> bool: ...

    @property
    def messages(self) -> int: ...

    @property
    def frames(self) -> list[tuple[int, int, int, int, int, bool, int]]: ...

    def ended_ps(self, member: int) -> int:
        """The time at which a member ended, -1 where it has not."""

    def set_value(self, member: int, chunk: int, segment: int, value: int) -> None: ...

    def value(self, member: int, chunk: int, segment: int) -> int | None:
        """
        The number of a segment's value; None where the member has no instruction about it.
        """

class Program:
    """One rank's part of a plan, compiled for the engine."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

def program(collective: int, plan: int, ranks: int, rank: int, chunks: int, splits: bool, forwards: bool, adds: bool, instructions: Sequence[tuple[int, int, int, bool]], pieces: int = 8, longest_segment: int = 0, offloads: bool = False, starts: Sequence[int] = []) -> Program:
    """
    Compile a rank's instructions (opcode, peer, chunk, last). Of the whole plan: `splits`, the chunks are parts of one buffer; `forwards`, some rank passes on what it received; `adds`, some rank adds; `pieces`, into how many segments a chunk is cut that flows; `longest_segment`, their limit in bytes, 0: the engine's own; `offloads`, a device of some rank may add; `starts`, of a ring: the rank whose data open each chunk.
    """

def split(count: int, parts: int, item_size: int, weights: Sequence[int] = []) -> list[tuple[int, int]]:
    """
    (offset, count) of each part of a buffer in elements, by weights if there are any.
    """

class Shares:
    """The weights of the ranks' shares in an operation."""

    def __init__(self) -> None: ...

class Request:
    """A posted operation."""

    def done(self) -> bool:
        """True once it has finished, well or badly."""

    def wait(self, timeout_ns: int) -> bool:
        """
        Block until finished; False when `timeout_ns` passed first (negative: no limit of its own).
        """

    def cancel(self, failure: tuple[int, str, int, int, int, int]) -> None:
        """
        Fail it on every rank, by `failure` of a Request; nothing when it has finished here.
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

    def ended_ns(self) -> int:
        """When it finished, in ns of the monotonic clock; 0 while it has not."""

class CompletionQueue:
    """The ends of the operations that a thread watches."""

    def watch(self, request: Request) -> None:
        """
        Have the operation's key returned by `wait` once the operation has ended.
        """

    def wait(self, timeout_ns: int) -> list[int]:
        """
        Drive the engine until an operation ends, at most `timeout_ns`; return the keys of all that have ended.
        """

def crc32c(data: bytes, seed: int = 0) -> int:
    """CRC32C of `data`, continuing from `seed`."""

class Group:
    """One life of a group of ranks on an engine."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def all_shared(self) -> bool:
        """True when every link is shared memory."""

    def run(self, program: Program, source: int, target: int, count: int, dtype: int, op: int, total_bytes: int, tag: int, priority: int, timeout_ns: int, blocking: bool, shares: Shares | None = None, internal: int = 0) -> Request | None:
        """
        Post an operation on one buffer. None when it is done. With `shares` the operation begins once they are set.
        """

    def run_chunks(self, program: Program, chunks: Sequence[tuple[int, int, int, int]], dtype: int, op: int, total_bytes: int, tag: int, priority: int, timeout_ns: int, blocking: bool, internal: int = 0) -> Request | None:
        """
        Post an operation on chunks (chunk, source, target, count). None when it is done. `internal` numbers it apart from the caller's operations.
        """

    def set_shares(self, shares: Shares, weights: Sequence[int], number: int, program: Program | None = None) -> None:
        """
        Set the weights (none: equal shares) and start what waits for them. `number`, 0 to 15, stands for them in frames; `program` replaces that of the operations.
        """

    def decline(self, shares: Shares, failure: tuple[int, str, int, int, int, int]) -> None:
        """
        Fail what waits for the shares or is posted with them later, by `failure` of a Request.
        """

    def message(self, receives: bool, address: int, count: int, dtype: int, total_bytes: int, peer: int, tag: int, priority: int, timeout_ns: int, blocking: bool) -> Request | None:
        """
        Send to or receive from a peer (-1: receive from any). None when it is done.
        """

    def serve(self, program: Program, onset: int) -> None:
        """
        Reduce for the others, by the part of the last member: what they send begins operations, nothing is added before `onset` segments of each are there.
        """

    def fall_back(self, fallback: Group, program: Program) -> None:
        """
        When the last member is lost, `fallback` does by `program` what is not done.
        """

    def broken(self) -> str:
        """Why nothing can be posted any more; empty while it can."""

    def close(self, timeout_ns: int) -> None:
        """Finish what is outstanding, tell the members, take no more."""

    def abort(self, reason: str) -> None:
        """Fail what is outstanding, here and at the members."""

    def attach(self, name: str) -> None:
        """
        From now on a device called `name` adds, where it can; before the first operation.
        """

    def device_work(self) -> tuple[list[tuple[int, int, int, int, int, int, int, int]], list[tuple[int, bytes]], list[tuple[int, int]]] | None:
        """
        Block until there is something for the device: operations (tag, chunk, start, dtype, total, frame bytes, priority, address), frames (port, bytes), (tag, chunk) of operations that failed. None once the group is closed.
        """

    def device_answer(self, frames: Sequence[bytes], completed: Sequence[tuple[int, int]], released: Sequence[tuple[int, int]]) -> None:
        """
        What the device gives: frames to send, in order, (tag, chunk) of operations whose result is whole, and of failed ones whose memory it uses no more. Raises ValueError for what cannot be.
        """

    def device_closed(self) -> None:
        """
        The device is closed and uses no memory any more; after the last device_work().
        """

    def device_failed(self, reason: str) -> None:
        """
        Nothing more comes from the device: fail the group, here and at the members.
        """

class FaultState:
    """What an engine inflicts on what it sends over a rail."""

    def __init__(self, *, delay_ns: int = 0, jitter_ns: int = 0, rate: int = 0, loss: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0, corrupt: float = 0.0, down: bool = False, seed: int = 0) -> None:
        """
        `rate` in bytes per second, 0 for no limit; shares of packets from 0 to 1.
        """

class RailEvent:
    """A change of a rail."""

    @property
    def link(self) -> int: ...

    @property
    def rail(self) -> int:
        """Index in the link; -1: the link as a whole."""

    @property
    def what(self) -> str:
        """"up", "suspect", "lost", "down" or "wanted" (has no rail yet)."""

    @property
    def reason(self) -> str: ...

    @property
    def time_ns(self) -> int:
        """Of the monotonic clock."""

class RailStatus:
    """What is known of a rail. Counts are since it began."""

    @property
    def link(self) -> int: ...

    @property
    def rail(self) -> int: ...

    @property
    def kind(self) -> str:
        """"tcp", "udp" or "shm"."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str:
        """"up", "suspect", or "ended"."""

    @property
    def bytes_sent(self) -> int: ...

    @property
    def bytes_received(self) -> int: ...

    @property
    def frames_sent(self) -> int: ...

    @property
    def frames_received(self) -> int: ...

    @property
    def packets_sent(self) -> int: ...

    @property
    def packets_resent(self) -> int: ...

    @property
    def packets_refused(self) -> int: ...

    @property
    def frames_resent(self) -> int: ...

    @property
    def queued_bytes(self) -> int:
        """In the engine."""

    @property
    def unconfirmed_bytes(self) -> int:
        """Queued, or under way and not known to have arrived."""

    @property
    def confirmed_bytes(self) -> int: ...

    @property
    def busy_ns(self) -> int:
        """Time with anything unconfirmed."""

    @property
    def round_trip_ns(self) -> int:
        """Smoothed; 0 while unknown."""

    @property
    def probes(self) -> list[tuple[int, int, int, int]]:
        """
        The last probes, oldest first: sent here, received there, answered there, back here, in ns of each host's monotonic clock.
        """

    @property
    def probe_count(self) -> int:
        """How many there ever were."""

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

    def free_ring(self, offset: int) -> bool:
        """
        Free a ring that no rail has and no peer writes to; False when there is no ring.
        """

    def add_link(self, name: str, reconnect: bool = False, shared: bool = False) -> int:
        """`reconnect`: it outlives its rails. `shared`: by shared memory."""

    def add_rail(self, link: int, rail: int, kind: str, fd: int, job: int, checksums: bool = True, name: str = '', most_packet_bytes: int = 65535) -> None:
        """
        Takes ownership of the connected socket `fd` of `kind` tcp or udp. `rail` is its index in the link, the same at both ends: a rail that has it is replaced. `job` is the code that every frame on it carries; `checksums` tells whether its payloads carry one. `most_packet_bytes` bounds the payload of a UDP packet below what this end's NIC takes.
        """

    def drop_rail(self, link: int, rail: int, reason: str) -> None:
        """
        End a rail as if it had failed; what it had not delivered goes over the others.
        """

    def unreachable(self, link: int, reason: str) -> None:
        """The peer's process is known to be gone: the link goes down."""

    def hindered(self, link: int, why: str) -> None:
        """Tell why a link has no first rail yet."""

    def set_fault(self, link: int, rail: int, state: FaultState | None) -> None:
        """Inflict faults on what this end sends over a rail (-1: all)."""

    def next_event(self) -> RailEvent | None:
        """Block until a rail changes; None once the engine is closed."""

    def rails(self) -> list[RailStatus]:
        """Every rail in use, and the former rails of links that have ended."""

    def add_shm_rail(self, link: int, arena_fd: int, arena_bytes: int, doorbell_fd: int, control_fd: int, receive_ring: int, send_ring: int) -> None:
        """Takes ownership of the three descriptors."""

    def link_alive(self, link: int) -> bool: ...

    def open_group(self, epoch: int, rank: int, links: Sequence[int], rank_order: bool) -> Group:
        """links[i] leads to rank i; -1 for the own rank."""

    def completion_queue(self) -> CompletionQueue:
        """Return an empty queue for the ends of operations of this engine."""

    def next_completion(self) -> int | None:
        """
        Block until a watched operation finishes; None once the engine is closed.
        """

    def log_operations(self, capacity: int) -> None:
        """
        Keep a record of each operation that ends, in a ring of `capacity` records, a power of two. Call it before the first group is opened.
        """

    def logged_operations(self) -> tuple[bytes, int, int]:
        """
        Return (rows, count, lost) of the records since the previous call: rows of JSON joined by commas, their number, and the number of records that found the ring full. One thread at a time may call.
        """

    def counters(self) -> dict[str, int]: ...

    def close(self, timeout_ns: int) -> None: ...
