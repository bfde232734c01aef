"""An aggregation node in software on a host of a lab."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from _harness.programs import ProgramError

_COMMAND = "from slackline.cli import main; raise SystemExit(main())"


class Hosts(Protocol):
    """The part of a lab that starts programs on hosts."""

    def address(self, host: int, /) -> str:
        """Return the IP address of a host."""

    def command(self, host: int, argv: Sequence[str], /) -> list[str]:
        """Return the command that runs `argv` on a host."""


@contextmanager
def aggregation_node(lab: Hosts, host: int, *, workers: int, onset: int = 1) -> Iterator[str]:
    """Run `slackline aggregate` on a host of the lab; yield the node's address.

    Raises ProgramError, with the node's own error output, if the node does not start.
    """
    argv = [sys.executable, "-c", _COMMAND, "aggregate", "--listen", f"{lab.address(host)}:0"]
    argv += ["--workers", str(workers), "--onset", str(onset), "--without-key"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            lab.command(host, argv), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            found = re.match(r"listening at (\S+) ", said)
            if found is None:
                process.terminate()
                process.wait()
                errors.seek(0)
                raise ProgramError(
                    f"the aggregation node did not start: {(said + errors.read()).strip()}"
                )
            yield found[1]
        finally:
            process.terminate()
