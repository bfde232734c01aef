"""torchft's lighthouse at the loopback, until its standard input ends.

    torchft_lighthouse.py ADDRESS HEARTBEAT_MS

The file ADDRESS gets the lighthouse's address. A replica that is silent for HEARTBEAT_MS is dead.
"""

import sys
from pathlib import Path

from torchft.coordination import LighthouseServer


def main() -> None:
    address, heartbeat_ms = sys.argv[1:]
    server = LighthouseServer(
        bind="127.0.0.1:0",
        min_replicas=1,
        join_timeout_ms=60_000,
        quorum_tick_ms=50,
        heartbeat_timeout_ms=int(heartbeat_ms),
    )
    port = server.address().rpartition(":")[2]
    Path(address).write_text(f"http://127.0.0.1:{port}\n")
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
