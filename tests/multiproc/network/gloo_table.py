"""The results of torch's backend gloo on the networks of these tests; run as root.

    python tests/multiproc/network/gloo_table.py [NETWORK ...]

Each line names a network, the result of each rank, and the bytes that each NIC of rank 0 sent.
"""

import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from network_hosts import Wiring, plain_environment
from network_table import NETWORKS, Network

PROGRAM = Path(__file__).with_name("gloo_rank.py")


def name_host(net: Wiring, host: int) -> None:
    """Map the machine's name to a host's first address, unless the network has its own mapping."""
    if net.has_hosts_file(host):
        return
    told = subprocess.run(
        ["ip", "-n", net.host(host), "-j", "address"], check=True, capture_output=True
    )
    found = [
        each["local"] + (f"%{device['ifname']}" if each["scope"] == "link" else "")
        for device in json.loads(told.stdout)
        for each in sorted(device["addr_info"], key=lambda each: each["scope"] == "link")
        if device["ifname"] not in ("lo", "docker0", "veth1", "inside1")
    ]
    net.write_hosts(host, f"127.0.0.1 localhost\n{found[0]} {socket.gethostname()}\n")


def results(network: Network) -> list[str]:
    """Return the line that each rank of gloo prints on a network."""
    with tempfile.TemporaryDirectory() as folder, Wiring(2, Path(folder)) as net:
        network.build(net)
        for host in range(2):
            name_host(net, host)
        ranks = [
            subprocess.Popen(
                net.command(rank, [sys.executable, str(PROGRAM), str(rank), "2", folder]),
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=plain_environment(),
            )
            for rank in range(2)
        ]
        told = []
        for rank in ranks:
            try:
                told.append(rank.communicate(timeout=100)[0].strip())
            except subprocess.TimeoutExpired:
                told.append("hangs")
            finally:
                rank.kill()
                rank.wait()
        rows = subprocess.run(
            ["ip", "netns", "exec", net.host(0), "cat", "/proc/net/dev"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[2:]
        sent = [f"{row.split(':')[0].strip()} {row.split(':')[1].split()[8]}" for row in rows]
        return [*told, f"sent: {', '.join(sent)}"]


if __name__ == "__main__":
    for name in sys.argv[1:] or NETWORKS:
        sys.stdout.write(" | ".join([name, *results(NETWORKS[name])]) + "\n")
        sys.stdout.flush()
