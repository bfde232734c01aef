"""The sentences that follow the reason why a rail is missing: what else may be true, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from slackline.nic.connect._addresses import Interface, loopback_fault
from slackline.nic.connect._paths import LongPacketsLostError
from slackline.nic.connect._rail_set import RailSet, RailState

__all__ = ["behind_nat", "doubt", "reason"]

_ANOTHER_MACHINE = (
    "; or it runs on another machine with this machine's boot id, as machines cloned from one "
    "snapshot have: then set SLACKLINE_RAILS=tcp on all ranks"
)
_NAT = (
    "may be behind NAT (address translation) or a firewall: set SLACKLINE_INTERFACE on that host "
    "to an interface whose address all hosts of the job reach, or start its container with the "
    "network of the host"
)


def doubt(rails: RailSet, shared: bool) -> str:
    """Return, to be added to an error, the doubt whether a peer has ended; "" without a doubt.

    `shared` says that the rails share memory, which may never have led to the peer.
    """
    never = shared and all(rail.proven_s is None for rail in rails)
    return _ANOTHER_MACHINE if never else ""


def reason(
    error: Exception, rail: RailState, rails: RailSet, interfaces: Sequence[Interface]
) -> str:
    """Return why an attempt to connect a rail has ended with an error, and what to do if known.

    `interfaces` are those of this host.
    """
    told = str(error) or "no answer in time"
    if isinstance(error, MemoryError):
        told = "no memory is left"
    if isinstance(error, LongPacketsLostError):
        return told + _mtu_to_set(error, interfaces)
    ours = {each.address for each in interfaces}
    here = any(each.address in ours for each in rails.all_attempts())
    if here and rail.plan.kind != "shm" and (fault := loopback_fault()):
        return f"{told}; {fault}"
    return told


def _mtu_to_set(error: LongPacketsLostError, interfaces: Sequence[Interface]) -> str:
    """Return the advice to set the MTU with which packets pass."""
    names = [each.nic for each in interfaces if each.address in error.ends]
    mtu = error.passed.arrived
    return (
        f": set the MTU of the interfaces of both addresses to {mtu} (ip link set dev "
        f"{names[0] if names else 'NAME'} mtu {mtu}), or let the routers and firewalls between "
        "them pass ICMP messages of the type 'fragmentation needed' or 'packet too big'"
    )


def behind_nat(rails: RailSet, interfaces: Sequence[Interface], rank: int) -> str:
    """Return, to be added to an error, whose addresses may be behind NAT; empty if none may be.

    Either this end has tried the addresses of `rank` without success, or it waits for that rank,
    which it reaches, to dial. `interfaces` are those of this host.
    """
    ours = [each.address for each in interfaces if not each.is_loopback]
    theirs = list(dict.fromkeys(each.address for each in rails.all_attempts()))
    if not theirs or set(ours) & set(theirs) or any(rail.added or rail.too_long for rail in rails):
        return ""
    if all(rail.proven_s is None for rail in rails):
        tried = any(rail.tries for rail in rails)
        return f"; {_listed(theirs)} of rank {rank} {_NAT}" if tried else ""
    waits = not rails.calls and any(rail.tries > 1 for rail in rails)
    return f"; {_listed(ours)} of this rank {_NAT}" if waits else ""


def _listed(addresses: Sequence[str]) -> str:
    """Return "the address 10.0.0.1" or "the addresses 10.0.0.1, 10.0.1.1"."""
    return f"the address{'es' if len(addresses) > 1 else ''} {', '.join(addresses)}"
