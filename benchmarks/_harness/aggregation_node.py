"""An aggregation node in software on a host of a lab."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slackline.errors import UsageError
from slackline.lab import Lab

_COMMAND = "from slackline.cli import main; raise SystemExit(main())"


@contextmanager
def aggregation_node(lab: Lab, host: int, *, workers: int, onset: int = 1) -> Iterator[str]:
    """Run `slackline aggregate` on a host of the lab; yield the node's address.

    Raises UsageError if the node does not start.
    """
    argv = [sys.executable, "-c", _COMMAND, "aggregate", "--listen", f"{lab.address(host)}:0"]
    argv += ["--workers", str(workers), "--onset", str(onset), "--without-key"]
    with subprocess.Popen(
        lab.command(host, argv), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            found = re.match(r"listening at (\S+) ", said)
            if found is None:
                raise UsageError(f"the aggregation node did not start: {said!r}")
            yield found[1]
        finally:
            process.terminate()
