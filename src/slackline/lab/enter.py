"""A launcher that moves a rank's process to the rank's own lab host.

    python -m slackline.lab.enter LAB SCRIPT ARGUMENTS...

torchrun starts the launcher on the first host, with RANK in the environment. The launcher enters
the network namespace of host RANK and then executes Python on SCRIPT in the same process. The
launcher sets LOCAL_RANK and similar variables to tell the rank that it is alone on its host.
"""

import os
import sys

from slackline.lab import _names as names


def main(lab: str, program: list[str]) -> None:
    """Replace this process by Python on `program`, in the network namespace of the rank's host."""
    rank = os.environ["RANK"]
    os.environ |= {
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": rank,
        "GROUP_WORLD_SIZE": os.environ["WORLD_SIZE"],
    }
    home = names.namespace(lab, int(rank))
    os.execvp("ip", ["ip", "netns", "exec", home, sys.executable, "-u", *program])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
