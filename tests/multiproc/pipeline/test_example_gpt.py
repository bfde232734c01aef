"""The example trains over a slow link, with the losses of one process."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "pipeline_gpt.py"
_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]


def test_a_gpt_in_four_stages_over_a_slow_link_has_the_losses_of_one_process():
    options = ["--ranks", "4", "--fault", "link 1-2 delay 30ms"]
    small = ["--steps", "6", "--width", "64", "--microbatches", "6", "--batch", "12"]
    result = subprocess.run(
        [*_SLACKLINE, "run", *options, str(EXAMPLE), *small, "--memory", "4", "--check"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    losses = [float(each) for each in re.findall(r"step \d+: loss (\d+\.\d+)", result.stdout)]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert "losses in one process: the same bits" in result.stdout
