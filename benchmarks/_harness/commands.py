"""The `slackline` command of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

SLACKLINE = (sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())")


def run_slackline(
    arguments: Sequence[str], environment: Mapping[str, str], *, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run a command that succeeds, with further variables, and return it with its output.

    Raises RuntimeError for a command that fails, and TimeoutExpired.
    """
    done = subprocess.run(
        [*SLACKLINE, *arguments],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"slackline {' '.join(arguments)} has failed: {said}")
    return done
