"""The ranks of each host, and the wires between hosts that are in use."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from slackline.history import Job

__all__ = ["Direction", "Layout", "hosts_of", "joined", "layout", "together"]

_IN_USE_NS = 5_000_000_000
"""The age of the latest report of a rail with traffic, up to which the rail is in use."""

Direction = tuple[int, int, int]
"""One direction of a rail: the sending rank, the receiving rank, and the index of the rail."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The hosts of a job, numbered from 0 in the order of their first ranks."""

    hosts: Sequence[tuple[int, ...]]
    """The ranks of each host in rising order."""
    names: Sequence[str]
    """The name of each host in sentences: "host alpha", "host 2" of a lab, "the host of rank 2"."""
    host_of: dict[int, int]
    """The host of each rank."""
    used: frozenset[Direction]
    """The directions that carry traffic between hosts."""
    read: tuple[int, int, int]
    """The numbers of ranks, of their processes and of rails from which the hosts were found."""


def layout(job: Job, now_ns: int, before: Layout | None = None) -> Layout:
    """Return the hosts of a job, and the directions that are in use at the Unix time `now_ns`.

    Ranks with the same host name and no wire between them share a host. Hosts of a lab have the
    name of the machine in common, but wires between them. The hosts of the layout `before` are
    taken over if no rank and no rail has been added since.
    """
    processes = sum(rank.processes for rank in job.ranks.values())
    read = len(job.ranks), processes, len(job.links)
    used = _used(job, now_ns)
    if before is not None and before.read == read:
        return replace(before, used=used)
    wired = {(rank, peer) for rank, peer, _ in job.links}
    hosts: list[list[int]] = []
    labels: list[str] = []
    for rank in job.ranks.values():
        label = "" if rank.header is None else rank.header.host
        for number, members in enumerate(hosts):
            if not label or labels[number] != label:
                continue
            ends = [(rank.number, other) for other in members]
            if not any(way in wired or way[::-1] in wired for way in ends):
                members.append(rank.number)
                break
        else:
            hosts.append([rank.number])
            labels.append(label)
    numbered = all(members == [number] for number, members in enumerate(hosts))
    names = [
        f"host {label}"
        if label and labels.count(label) == 1
        else f"host {number}"
        if label and numbered
        else _of_ranks(members)
        for number, (label, members) in enumerate(zip(labels, hosts, strict=True))
    ]
    host_of = {rank: number for number, members in enumerate(hosts) for rank in members}
    return Layout([tuple(members) for members in hosts], names, host_of, used, read)


def hosts_of(job: Job) -> Sequence[tuple[int, ...]]:
    """Return the ranks of each host of a job, in the order of their first ranks."""
    return layout(job, 0).hosts


def _used(job: Job, now_ns: int) -> frozenset[Direction]:
    """Return the directions with traffic in a report that is not old at the Unix time `now_ns`.

    The age of a report is relative to the latest report of any link: after the end of all traffic,
    the links that were in use stay in use.
    """
    latest_ns = max((link.latest_ns for link in job.links.values()), default=now_ns)
    since_ns = max(1, min(now_ns, latest_ns) - _IN_USE_NS)
    used = {place for place, link in job.links.items() if link.sending_ns >= since_ns}
    for (rank, peer, rail), link in job.links.items():
        if link.receiving_ns >= since_ns:
            used.add((peer, rank, rail))
    return frozenset(used)


def _of_ranks(members: Sequence[int]) -> str:
    """Return a name for a host whose own name does not tell it from others."""
    numbers = ", ".join(map(str, members))
    return f"the host of {'rank' if len(members) == 1 else 'ranks'} {numbers}"


def joined(hosts: Iterable[int], near: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the site of each host: hosts that a chain of near pairs joins share one."""
    site = {host: host for host in hosts}
    for one, other in near:
        kept, gone = site[one], site[other]
        if kept != gone:
            site = {host: kept if each == gone else each for host, each in site.items()}
    return site


def together(names: Sequence[str]) -> str:
    """Return names in words: "a and b", "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}"
