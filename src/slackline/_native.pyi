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
        """`rate` is in bytes per second to each NIC; 0 means no limit."""

    def add_nic(self, namespace_path: str, name: str) -> None:
        """
        Create a NIC in its host's network namespace. All NICs are added host by host before `run`.
        """

    def run(self) -> None:
        """Forward frames until `stop`, or until a host's namespace has gone."""

    def stop(self) -> None: ...

    def apply(self, paths: Sequence[tuple[int, int, int, int, int, int, float, float, float, float, bool, int]], ports: Sequence[tuple[int, int, int, bool]]) -> None:
        """
        Replace all faults by these: paths (from, to, nic, delay_ns, jitter_ns, rate, loss, duplicate, reorder, corrupt, down, seed) and ports (host, nic, rate, down). Rates are in bytes per second; 0 means no limit.
        """

    def counters(self) -> list[PathCounters]: ...

    @property
    def refused(self) -> int: ...

def ring_flows(hosts: Sequence[tuple[int, int, int, int, int, int, int, int, int, int, int, int]], starts_ps: Sequence[int]) -> list[int]:
    """
    Return the time in picoseconds at which each host of a ring has the result of an all_reduce. `hosts` has the fields of FlowHost in native/src/sim/flows.h for each host; `starts_ps` delays the start of each host.
    """

def ring_flows_alike(host: tuple[int, int, int, int, int, int, int, int, int, int, int, int], hosts: int) -> int:
    """Return the same time for `hosts` hosts that are all like `host`."""

class SimulatedPlan:
    """A collective's plan, compiled for simulation."""

    def __init__(self, ranks: int, cuts: Sequence[tuple[int, int, int]], itemsize: int, widest_itemsize: int, onset: int, priority: int, reduces: bool, rotation: tuple[int, int, bool] | None, programs: Iterable[object], nodes: Sequence[int] = []) -> None:
        """
        `cuts` has (most, full, rest) for each chunk: `full` segments of `most` elements, then one of `rest` elements. `programs` has the instructions (kind, peer, chunk, last) of each member. `nodes` has the rank of each node of a sum in a tree.
        """

class SimulatedMachine:
    """A simulated machine: one clock, the wires, and every member's threads."""

    def __init__(self, hosts: Sequence[tuple[Sequence[int], int, int, int, int, int, int, int, int]], framing: tuple[int, int, int], forwards_after_bytes: int | None, resend_ps: int, shared_cores: int, placement: Sequence[int], faulty: bool, deliver: object, settle: object, state: object, draw: object) -> None:
        """
        `deliver(token, member)` is called for an event, a finished task and a member's end, `settle()` after all events of one time. If `faulty`, `state` and `draw` are called for the faults of the network.
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
        Deliver a token after `work_ps` of work of the member's computing thread.
        """

    def condition(self, member: int, numerator: int, denominator: int, stopped: bool) -> None:
        """
        Set how many times slower than usual a member works, and whether it stands still.
        """

    def set_rate(self, host: int, nic: int, rate_bps: int) -> None: ...

    def change(self) -> None:
        """
        Ask for the state of every path again; drop the frames in flight on paths that are now down.
        """

    def execute(self, plan: SimulatedPlan, members: Sequence[int], token: int, records: bool = False, values: object | None = None) -> SimulatedExecution:
        """
        Prepare an execution of a plan; `token` is delivered with each member that has ended. `values` adds and reduces values, which are identified by numbers; None computes times only.
        """

    def run(self, limit_ps: int) -> None:
        """
        Run events until `stop` is called, none is left, or `limit_ps` has passed.
        """

    def stop(self) -> None:
        """Make `run` return after all events of the current time."""

    def waiting(self) -> list[tuple[int, int]]:
        """
        Return the (source, target) hosts of every frame that waits in a queue.
        """

class SimulatedExecution:
    """One collective operation on members of a simulated machine."""

    def begin(self, member: int) -> None: ...

    @property
    def finished(self) -> bool: ...

    @property
    def messages(self) -> int: ...

    @property
    def frames(self) -> list[tuple[int, int, int, int, int, bool, int]]: ...

    def ended_ps(self, member: int) -> int:
        """Return the time at which a member ended, or -1 if it has not ended."""

    def set_value(self, member: int, chunk: int, segment: int, value: int) -> None: ...

    def value(self, member: int, chunk: int, segment: int) -> int | None:
        """
        Return the number of a segment's value, or None if the member has no instruction for the chunk.
        """

class Program:
    """One rank's part of a plan, compiled for the engine."""

    @property
    def rank(self) -> int: ...

    @property
    def ranks(self) -> int: ...

def program(collective: int, plan: int, ranks: int, rank: int, chunks: int, splits: bool, forwards: bool, adds: bool, instructions: Sequence[tuple[int, int, int, bool]], pieces: int = 8, longest_segment: int = 0, offloads: bool = False, starts: Sequence[int] = [], tree: tuple[int, Sequence[int], Sequence[int]] | None = None, repeated_by: Program | None = None) -> Program:
    """
    Compile a rank's instructions (opcode, peer, chunk, last). The other arguments are properties of the whole plan. `splits`: the chunks are parts of one buffer. `forwards`: some rank forwards data that it received. `adds`: some rank adds. `pieces`: the number of segments of a pipelined chunk. `longest_segment`: the limit of a segment in bytes, 0 for the engine's own limit. `offloads`: a device of some rank may add. `starts`: for a ring, the rank whose data starts each chunk. `tree`: for a sum in a tree, the number of leaves, the rank of each node, and the number of sums that follow each node; with `splits` each rank has one node, in the chunks of any plan. `repeated_by`: for a worker of an aggregator, the program that repeats the operation if the aggregator is lost, where this is not the one of `fall_back`.
    """

def split(count: int, parts: int, item_size: int, weights: Sequence[int] = []) -> list[tuple[int, int]]:
    """
    Return the (offset, count) of each part of a buffer, in elements; `weights` set the parts' sizes.
    """

class Shares:
    """The weights of the ranks' shares in an operation."""

    def __init__(self) -> None: ...

class Request:
    """A posted operation."""

    def done(self) -> bool:
        """Return whether the operation has ended, with or without an error."""

    def wait(self, timeout_ns: int) -> bool:
        """
        Block until the operation has ended. Return False if `timeout_ns` passed first; a negative timeout leaves only the operation's own deadline.
        """

    def cancel(self, failure: tuple[int, str, int, int, int, int]) -> None:
        """
        Fail the operation on every rank with `failure`, a tuple as Request.failure returns. Do nothing if the operation has ended on this rank.
        """

    def failure(self) -> tuple[int, str, int, int, int, int] | None:
        """
        Return (fault, message, rank, peer, tag, sequence) of a failed operation, else None.
        """

    def watch(self) -> bool:
        """
        Make next_completion() return the operation's key once. Return True, and do nothing, if the operation has ended already.
        """

    def open_at_end(self, others: Sequence[Request], word: int, value: int) -> bool:
        """
        Have the engine write the 32 bits `value` to the address `word` when this operation and `others` have ended, unless one of them fails, before that end can be seen. Return False, and do nothing, if all have ended, or one has failed. The word must outlive the operations.
        """

    def key(self) -> int:
        """Return the operation's key, which next_completion() returns too."""

    def source(self) -> int:
        """
        Return the rank that sent the message of a receive from any source, or -1 while it is unknown.
        """

    def ended_ns(self) -> int:
        """
        Return the time of the operation's end in ns of the monotonic clock, or 0 before it.
        """

class CompletionQueue:
    """A queue of the ended operations that a thread watches."""

    def watch(self, request: Request) -> None:
        """Make `wait` return the operation's key once the operation has ended."""

    def wait(self, timeout_ns: int) -> list[int]:
        """
        Drive the engine until an operation ends, at most `timeout_ns`; return the keys of all that have ended.
        """

def crc32c(data: bytes, seed: int = 0) -> int:
    """Return the CRC32C of `data`, continued from `seed`."""

def kernel_fingerprints() -> list[tuple[int, int, int]]:
    """
    Return (dtype, op, checksum of 16 bits) of the kernels' results on fixed inputs, for each element type and reduction, always in the same order.
    """

class DefaultFloatModes:
    """
    A context manager that sets the default floating-point modes (rounding to nearest, subnormals kept) on its thread, and at the end the thread's own again.
    """

    def __init__(self) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

class PreparedRun:
    """An operation on one buffer, ready to be posted any number of times."""

    def post(self, source: int, target: int, priority: int, timeout_ns: int, blocking: bool) -> Request | None:
        """
        Post the operation on this memory. Return None if the operation is done already.
        """

class Group:
    """A group of ranks on an engine, from its opening to its end."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def all_shared(self) -> bool:
        """
        True when every link was planned to use shared memory, which all ranks know equally.
        """

    def run(self, program: Program, source: int, target: int, count: int, dtype: int, op: int, total_bytes: int, tag: int, priority: int, timeout_ns: int, blocking: bool, shares: Shares | None = None, internal: int = 0) -> Request | None:
        """
        Post an operation on one buffer. Return None if the operation is done already. With `shares` the operation begins once their weights are set.
        """

    def prepare(self, program: Program, count: int, dtype: int, op: int, total_bytes: int, tag: int) -> PreparedRun:
        """
        Prepare an operation on one buffer of `count` elements, as `run` posts it.
        """

    def run_chunks(self, program: Program, chunks: Sequence[tuple[int, int, int, int]], dtype: int, op: int, total_bytes: int, tag: int, priority: int, timeout_ns: int, blocking: bool, internal: int = 0) -> Request | None:
        """
        Post an operation on chunks (chunk, source, target, count). Return None if the operation is done already. An `internal` operation has sequence numbers apart from those of the caller's operations.
        """

    def set_shares(self, shares: Shares, weights: Sequence[int], number: int, program: Program | None = None) -> None:
        """
        Set the weights of the ranks' shares (empty: equal shares) and start the operations that wait for them. `number`, 0 to 15, identifies the weights in frames; `program` replaces the operations' program.
        """

    def decline(self, shares: Shares, failure: tuple[int, str, int, int, int, int]) -> None:
        """
        Fail the operations that wait for the shares, and all that are posted with them later, with `failure`, a tuple as Request.failure returns.
        """

    def message(self, receives: bool, address: int, count: int, dtype: int, total_bytes: int, peer: int, tag: int, priority: int, timeout_ns: int, blocking: bool) -> Request | None:
        """
        Send a message to a peer, or receive one from it (-1: from any rank). Return None if the message is done already.
        """

    def serve(self, program: Program, onset: int, tree: Program | None = None) -> None:
        """
        Make this rank, the group's last member, an aggregator that reduces for the others by `program`. Frames of the other members begin operations; addition starts when `onset` segments of each member have arrived. `tree` is the program for sums of one node of each member in a tree, None for an aggregator that does not add these.
        """

    def fall_back(self, fallback: Group, program: Program) -> None:
        """
        Make `fallback` finish all open operations, by `program`, when the group's last member is lost.
        """

    def broken(self) -> str:
        """
        Return why the group refuses operations, or an empty text if it does not.
        """

    def close(self, timeout_ns: int) -> None:
        """Finish all open operations, then leave the group and tell its members."""

    def abort(self, reason: str) -> None:
        """Fail all open operations of the group, on this rank and on the others."""

    def attach(self, name: str) -> None:
        """
        Attach a device called `name`, which adds for the group where it can. Call it before the first operation.
        """

    def device_work(self) -> tuple[list[tuple[int, int, int, int, int, int, int, int]], list[tuple[int, bytes]], list[tuple[int, int]]] | None:
        """
        Block until there is work for the device. Return new operations (tag, chunk, start, dtype, total, frame bytes, priority, address), frames (port, bytes), and the (tag, chunk) of operations that failed; None once the group is closed.
        """

    def device_answer(self, frames: Sequence[bytes], completed: Sequence[tuple[int, int]], released: Sequence[tuple[int, int]]) -> None:
        """
        Pass on the device's results: frames to send, in order; the (tag, chunk) of completed operations; the (tag, chunk) of failed operations whose memory the device no longer uses. Raises ValueError for an impossible result.
        """

    def device_closed(self) -> None:
        """
        State, after the last device_work(), that the device is closed and uses no memory any more.
        """

    def device_failed(self, reason: str) -> None:
        """
        Fail the group on every rank because its device will not answer any more.
        """

def stream_limits(bytes_per_second: int, urgent_expected: bool) -> tuple[int, int]:
    """Return the most bytes in the queue and unsent in the socket of a rail."""

class FaultState:
    """The faults that an engine applies to frames that it sends over a rail."""

    def __init__(self, *, delay_ns: int = 0, jitter_ns: int = 0, rate: int = 0, loss: float = 0.0, duplicate: float = 0.0, reorder: float = 0.0, corrupt: float = 0.0, down: bool = False, seed: int = 0) -> None:
        """
        `rate` is in bytes per second, 0 for no limit. `loss`, `duplicate`, `reorder` and `corrupt` are shares of packets from 0 to 1.
        """

class RailEvent:
    """A change of a rail's state."""

    @property
    def link(self) -> int: ...

    @property
    def rail(self) -> int:
        """The rail's index in the link; -1 for the link as a whole."""

    @property
    def what(self) -> str:
        """
        "up", "suspect", "lost", "closed" (the peer has closed its engine in good order) or "down". For a link as a whole also "wanted" (an operation needs the link, which has no rail yet), "left" (a worker has left its aggregator) and "abandoned" (the engine gives up the link to an aggregator that has failed).
        """

    @property
    def reason(self) -> str: ...

    @property
    def time_ns(self) -> int:
        """The time of the change by the monotonic clock."""

class RailStatus:
    """The state of a rail, and its counts since it began."""

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
        """Bytes that are queued in the engine."""

    @property
    def unconfirmed_bytes(self) -> int:
        """Bytes that are queued, or sent and not yet confirmed by the peer."""

    @property
    def confirmed_bytes(self) -> int: ...

    @property
    def busy_ns(self) -> int:
        """The time during which some data was unconfirmed."""

    @property
    def round_trip_ns(self) -> int:
        """The smoothed round-trip time; 0 while unknown."""

    @property
    def probes(self) -> list[tuple[int, int, int, int]]:
        """
        The latest probes, oldest first, with four times each: sent by this rank, received by the peer, answered by the peer, answer received by this rank. Times are in ns of each host's monotonic clock.
        """

    @property
    def probe_count(self) -> int:
        """The number of all probes of the rail so far."""

class OpenOperation:
    """
    An operation that has not ended or has failed. Its kind, size and number are those of slackline.records.Operation.
    """

    @property
    def collective(self) -> int: ...

    @property
    def receives(self) -> bool: ...

    @property
    def peer(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def tag(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def internal(self) -> int: ...

    @property
    def plan(self) -> int: ...

    @property
    def posted_ns(self) -> int: ...

    @property
    def usual_ns(self) -> int:
        """The mean duration of earlier ones like it; 0 for the first."""

    @property
    def missing(self) -> list[tuple[int, str]]:
        """
        The ranks of the group whose parts are missing: "silent" without any frame of the operation, "begun" with some, "taking" if data for the rank are not confirmed.
        """

    @property
    def waits_for(self) -> str:
        """The missing parts in words; empty for a failed operation."""

    @property
    def refused(self) -> bool:
        """Whether it failed when it was posted, before any data moved."""

    @property
    def failure(self) -> tuple[int, str, int, int, int, int] | None:
        """
        The failure, a tuple as Request.failure returns; None for a pending operation.
        """

    @property
    def departure(self) -> str:
        """How the peer left the group: closed, aborted, or empty if lost."""

class PeerArena:
    """The arena of a peer on the same host, mapped into this process."""

    def __init__(self, fd: int, bytes: int) -> None:
        """
        Map the arena behind `fd`, which stays the caller's. Raises ValueError unless the file has `bytes` bytes and cannot shrink, OSError if this process cannot map it.
        """

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
        """
        Return the address of newly allocated registered memory, or 0 if there is no room.
        """

    def free(self, address: int) -> bool: ...

    def withheld(self) -> dict[str, int]:
        """
        Return the bytes of freed memory that cannot be allocated yet, by the name of the peer that may still read or write the memory, because it has not noticed that an operation has failed.
        """

    def contains(self, address: int, bytes: int) -> bool: ...

    def new_ring(self) -> int:
        """Create a receive ring in the arena; return its offset."""

    def free_ring(self, offset: int) -> bool:
        """
        Free a ring that no rail has and no peer writes to; return False if `offset` has no ring.
        """

    def add_link(self, name: str, reconnect: bool = False, shared: bool = False) -> int:
        """
        Add a link without a rail; return its index. With `reconnect` the link outlives its rails. `shared` states that its rail will be shared memory.
        """

    def add_rail(self, link: int, rail: int, kind: str, fd: int, job: int, checksums: bool = True, name: str = '', most_packet_bytes: int = 65535) -> None:
        """
        Add a rail to a link and take ownership of `fd`, a connected socket. `kind` is tcp or udp. `rail` is the rail's index in the link, the same at both ends; an existing rail with this index is replaced. `job` is the code that every frame carries; `checksums` states whether payloads carry a checksum. `most_packet_bytes` limits the payload of a UDP packet.
        """

    def drop_rail(self, link: int, rail: int, reason: str) -> None:
        """
        End a rail as if it had failed; its undelivered frames are sent again over the other rails.
        """

    def unreachable(self, link: int, reason: str) -> None:
        """Take a link down because the peer's process is known to be gone."""

    def forget_link(self, link: int) -> None:
        """End a link that has had no rail and that no group has."""

    def hindered(self, link: int, why: str) -> None:
        """Set the reason why a link has no first rail yet."""

    def use_wires(self, link: int) -> None:
        """
        Let a link that has had no rail use TCP or UDP in place of the planned shared memory.
        """

    def set_fault(self, link: int, rail: int, state: FaultState | None) -> None:
        """Apply faults to frames that this end sends over a rail (-1: all)."""

    def next_event(self) -> RailEvent | None:
        """
        Block until a rail changes state; return None once the engine is closed.
        """

    def rails(self) -> list[RailStatus]:
        """
        Return all rails in use, and the former rails of links that have ended.
        """

    def add_shm_rail(self, link: int, arena: PeerArena, doorbell_fd: int, control_fd: int, receive_ring: int, send_ring: int) -> None:
        """
        Add a shared-memory rail over a peer's arena and take ownership of the two descriptors.
        """

    def uses_epoch(self, epoch: int) -> bool:
        """
        Return whether a group with this epoch is open, or closed while frames of it may still come from a peer.
        """

    def link_alive(self, link: int) -> bool: ...

    def open_group(self, epoch: int, rank: int, links: Sequence[int], rank_order: bool) -> Group:
        """Open a group; links[i] is the link to rank i, -1 for this rank itself."""

    def completion_queue(self) -> CompletionQueue:
        """Return an empty queue for the ends of operations of this engine."""

    def next_completion(self) -> int | None:
        """
        Block until a watched operation ends; return its key, or None once the engine is closed.
        """

    def log_operations(self, capacity: int) -> None:
        """
        Keep a record of each operation that ends, in a ring of `capacity` records, a power of two. Call it before the first group is opened.
        """

    def logged_sums(self) -> tuple[int, int, int]:
        """
        Return (waited_ns, running_ns, reduced_bytes) of the program's operations so far: the waits of threads for an operation, the times from post to end, and the buffers of all_reduce and reduce_scatter.
        """

    def logged_operations(self) -> tuple[bytes, int, int]:
        """
        Return (rows, count, lost) of the records since the previous call: rows of JSON joined by commas, their number, and the number of records that found the ring full. One thread at a time may call.
        """

    def pending(self) -> list[OpenOperation]:
        """Return the operations that have not ended, the oldest first."""

    def failures(self) -> tuple[list[OpenOperation], int]:
        """
        Return (operations, left_out): the first operations that have failed since the previous call, and the number of the others.
        """

    def counters(self) -> dict[str, int]: ...

    def close(self, timeout_ns: int) -> None: ...
