"""Checks of the addresses that ranks would use, and of the NUMA nodes of their NICs."""

import os
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from slackline.cli._doctor._finding import Finding, Level
from slackline.cli._doctor._system import read_text
from slackline.env import Environment
from slackline.errors import UsageError

if TYPE_CHECKING:
    from slackline.nic.host import Interface

__all__ = ["numa", "one_subnet", "path_findings", "used"]

_ARP = "/proc/sys/net/ipv4/conf/all/arp_ignore"


def path_findings() -> list[Finding]:
    """Return the result of every check in this file.

    The list is empty if the check of SLACKLINE_INTERFACE or of the compiled extension has failed.
    """
    try:
        from slackline.nic.host import local_interfaces, node_of_nic, nodes

        found = local_interfaces(Environment.read().interface or ())
    except (ImportError, UsageError):
        return []
    names = dict.fromkeys(each.nic for each in found if not each.is_loopback)
    places = {name: node_of_nic(name) for name in names}
    return [
        used(found),
        *one_subnet(found, read_text(_ARP)),
        *numa(places, os.sched_getaffinity(0), nodes()),
    ]


def used(found: Sequence["Interface"]) -> Finding:
    """Report, for each NIC, the addresses that ranks of this host publish."""
    nics: dict[str, list[str]] = {}
    for each in found:
        if not each.is_loopback:
            label = f"{each.nic} (a tunnel)" if each.overlay else each.nic
            nics.setdefault(label, []).append(f"{each.address}/{each.prefix}")
    value = "; ".join(f"{nic}: {', '.join(texts)}" for nic, texts in nics.items())
    return Finding(name="addresses used", value=value or "loopback alone")


def one_subnet(found: Sequence["Interface"], arp_ignore: str) -> list[Finding]:
    """Check that NICs in one IPv4 subnet answer ARP for their own address alone.

    `arp_ignore` is the kernel's setting of that name. The result is empty if no two NICs share a
    subnet.
    """
    subnets: dict[object, dict[str, None]] = {}
    for each in found:
        if each.ip.version == 4 and not (each.is_loopback or each.is_link_local):
            subnets.setdefault(each.subnet, {})[each.nic] = None
    several = {str(subnet): list(nics) for subnet, nics in subnets.items() if len(nics) > 1}
    if not several or arp_ignore not in ("", "0"):
        return []
    subnet, nics = next(iter(several.items()))
    return [
        Finding(
            name="NICs of one subnet",
            value=f"{', '.join(nics)} in {subnet}",
            level=Level.NOTE,
            advice=f"{' and '.join(nics)} answer ARP for each other's address, so packets to one "
            "may arrive by the other: let each answer for its own address alone",
            command="sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2",
        )
    ]


def numa(
    places: Mapping[str, int | None], allowed: Set[int], nodes: Mapping[int, Set[int]]
) -> list[Finding]:
    """Check that a rank runs on the NUMA node of its NICs.

    `places` are the nodes of the NICs, `allowed` the processors of this process, and `nodes` the
    processors of each node. The result is empty on a host of one node.
    """
    if len(nodes) < 2:
        return []
    mine = [node for node, processors in nodes.items() if processors & allowed]
    nics = ", ".join(f"{nic} on {node}" for nic, node in places.items() if node is not None)
    value = f"this process on {', '.join(map(str, mine))}; {nics or 'no NIC tells its node'}"
    away = [nic for nic, node in places.items() if node is not None and node not in mine]
    if away:
        node = places[away[0]]
        return [
            Finding(
                name="NUMA nodes",
                value=value,
                level=Level.NOTE,
                advice=f"{away[0]} is on NUMA node {node}, and this process may not run there: "
                "start the ranks that use the NIC on its node",
                command=f"numactl --cpunodebind={node} --membind={node} COMMAND",
            )
        ]
    if len(mine) > 1 and len({node for node in places.values() if node is not None}) > 1:
        return [
            Finding(
                name="NUMA nodes",
                value=value,
                level=Level.NOTE,
                advice="this process may run on several NUMA nodes, and its NICs are on several: "
                "start each rank on the node of its NIC",
                command="numactl --cpunodebind=NODE --membind=NODE COMMAND",
            )
        ]
    return [Finding(name="NUMA nodes", value=value)]
