"""The process that becomes a rank on its host.

    python -m slackline.lab._enter LAB SCRIPT ARGUMENTS...

torchrun starts it on the first host, with RANK in its environment; it goes to the host with that
number and becomes Python on SCRIPT, in the same process. There the rank is the only one of its
host, as LOCAL_RANK and the rest say.
"""

import os
import sys

from slackline.lab import _names as names


def main(lab: str, program: list[str]) -> None:
    """Become the program on the rank's host."""
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
