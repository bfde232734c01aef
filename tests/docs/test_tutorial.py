"""Tests of the tutorial's comparison: the cable that it pulls is one that gloo uses, too."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from page_blocks import ROOT, blocks
from test_commands import SECONDS

from slackline.errors import UsageError
from slackline.faults import NicFault, parse_all
from slackline.lab import require

S = 1_000_000_000
SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
BLOCKS = list(blocks(ROOT / "docs" / "tutorial.md"))
(SCRIPT,) = (block.body for block in BLOCKS if block.title == "train.py")
(COMMAND,) = (shlex.split(block.body) for block in BLOCKS if "--lab" in block.body)


def fault() -> NicFault:
    (found,) = parse_all(COMMAND[COMMAND.index("--fault") + 1]).faults
    assert isinstance(found, NicFault)
    return found


def test_the_first_nic_fails_for_a_good_part_of_the_run() -> None:
    """Gloo uses the first NIC of a host."""
    pulled = fault()
    assert (pulled.nic, pulled.effects.down) == (0, True)
    assert pulled.length_ns is not None
    assert pulled.length_ns >= 10 * S


def longest_step_ns(folder: Path, backend: str) -> int:
    """Run the tutorial's command with its first script over a backend; return the longest step."""
    timed = SCRIPT.replace('"gloo"', f'"{backend}"').replace("import sys\n", "import sys, time\n")
    timed = timed.replace(
        "    loss.backward()\n", "    start = time.monotonic_ns()\n    loss.backward()\n"
    )
    timed = timed.replace(
        "    optimizer.zero_grad()\n",
        "    optimizer.zero_grad()\n    print('took', time.monotonic_ns() - start)\n",
    )
    (folder / "train.py").write_text(timed)
    ended = subprocess.run(
        [*SLACKLINE, *COMMAND[1:]],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"after 400 steps over {backend}" in ended.stdout
    return max(map(int, re.findall(r"^took (\d+)$", ended.stdout, re.MULTILINE)))


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
def test_gloo_stands_still_while_the_cable_is_out_and_slackline_goes_on(tmp_path: Path) -> None:
    try:
        require()
    except UsageError as error:
        pytest.skip(str(error))
    assert longest_step_ns(tmp_path, "gloo") > 10 * S
    assert longest_step_ns(tmp_path, "slackline") < 5 * S
