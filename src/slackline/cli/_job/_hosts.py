"""The hosts of a job that runs on several machines, each with the same `slackline run` command.

    slackline run --hosts a,b,c --ranks 4 train.py      on a, on b and on c

Each machine finds its own name in the list. The first host of the list keeps the store of the job,
and host number i has the --ranks ranks that begin with rank i times --ranks.
"""

import socket
from dataclasses import dataclass

from slackline.cli._job._launch import Place
from slackline.errors import UsageError

__all__ = ["DEFAULT_PORT", "Hosts", "find_hosts"]

DEFAULT_PORT = 29500
"""The port of the job's store on the first host, unless --port names another: torchrun's own."""

_JOIN_S = 300
"""Seconds that torchrun waits for the agents of all hosts before it ends with an error."""


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The hosts of a job in the order of their ranks, and this machine's position among them."""

    names: tuple[str, ...]
    """Names or addresses, which every host of the job can resolve."""
    own: int
    """The index of this machine in `names`."""
    port: int = DEFAULT_PORT

    def place(self, ranks: int) -> Place:
        """Return the place of a job with `ranks` ranks on each host, as seen from this machine."""
        first = self.names[0]
        return Place(
            rendezvous=(
                f"--nnodes={len(self.names)}",
                f"--node-rank={self.own}",
                f"--master-addr={f'[{first}]' if ':' in first else first}",
                f"--master-port={self.port}",
                f"--rdzv-conf=timeout={_JOIN_S}",
            ),
            first=self.own * ranks,
            world=len(self.names) * ranks,
        )

    def announcement(self, ranks: int) -> str:
        """Return a line that names this host, its ranks and the host that shows the output."""
        first, last = self.own * ranks, (self.own + 1) * ranks - 1
        named = f"rank {first}" if first == last else f"ranks {first} to {last}"
        head = f"host {self.own} of {len(self.names)}, {self.names[self.own]}, has {named}"
        return head if self.own == 0 else f"{head}; {self.names[0]} shows the output of rank 0"

    def check_port(self) -> None:
        """Raise UsageError if this is the first host and its port for the job's store is taken.

        torchrun reports such a port only after its start, at the end of a traceback.
        """
        if self.own:
            return
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the store does
                probe.bind(("", self.port))
        except OSError as error:
            raise UsageError(
                f"--port {self.port} cannot be opened on this machine, which keeps the job's "
                f"store: {error.strerror}; name another port in the command of every host"
            ) from None


def find_hosts(text: str, port: int) -> Hosts:
    """Return the hosts that `text` lists, "a,b,c", with the position of this machine.

    A machine finds itself by its own name, with or without the domain. If its name is not in the
    list, or fits several entries, the machine is the entry with an address of one of its network
    interfaces. The names of other machines need not have an address yet: a pod that has not started
    has none.

    Raises UsageError for an empty or a repeated name, for a list in which this machine is missing
    or has two names, and for a port outside 1 to 65535.
    """
    if text.strip().isdigit():
        raise UsageError(
            f"--hosts {text} is a number of hosts, which only a lab has: add --lab, or list "
            "host names, as --hosts a,b,c"
        )
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"--hosts {text!r} has an empty name")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--hosts {text} names {name!r} twice")
    if not 1 <= port <= 65535:
        raise UsageError(f"--port must be between 1 and 65535, not {port}")
    own = socket.gethostname()
    here = [index for index, name in enumerate(names) if _same_name(name, own)]
    if len(here) != 1:
        here = _by_address(names, own)
    if len(here) > 1:
        both = " and ".join(repr(names[index]) for index in here)
        raise UsageError(f"--hosts {text}: {both} are this machine; start one command on each host")
    return Hosts(names=names, own=here[0], port=port)


def _same_name(name: str, own: str) -> bool:
    """Return whether two names are of one machine; either name may lack the domain."""
    if "." in name and "." in own:
        return name == own
    return name.partition(".")[0] == own.partition(".")[0]


def _by_address(names: tuple[str, ...], own: str) -> list[int]:
    """Return the positions of the names that lead to an address of this machine, at least one."""
    here, unknown = [], []
    for index, name in enumerate(names):
        try:
            found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):  # UnicodeError: the text cannot be a name, such as "a..b"
            unknown.append(repr(name))
            continue
        if any(_can_bind(family, address) for family, _, _, _, address in found):
            here.append(index)
    if not here:
        without = f"; without an address here: {', '.join(unknown)}" if unknown else ""
        raise UsageError(
            f"--hosts {','.join(names)}: none of these is this machine, {own!r}{without}"
        )
    return here


def _can_bind(family: int, address: tuple[object, ...]) -> bool:
    """Return whether an address is one of this machine: a socket can be bound to no other."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
