"""Tests that the GPT example trains over a slow link with the losses of one process."""

import os
import re
import subprocess
import sys

import pytest
from example_ranks import EXAMPLES, asked, example

EXAMPLE = EXAMPLES / "pipeline_gpt.py"
_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]


SMALL = ["--steps", "6", "--width", "64", "--microbatches", "6", "--batch", "12"]
SMALL += ["--memory", "4", "--check"]


def check(output: str) -> None:
    losses = [float(each) for each in re.findall(r"step \d+: loss (\d+\.\d+)", output)]
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert "losses in one process: the same bits" in output


def test_a_gpt_in_four_stages_over_a_slow_link_has_the_losses_of_one_process(job, store):
    environment = asked(store, EXAMPLE.name, *SMALL)
    environment |= {"SLACKLINE_FAULTS": "link 1-2 delay 30ms"}
    found = job(4, example, bare=True, environment=environment)
    assert [message for _, message in found] == [""] * 4
    check("".join(output for output, _ in found))


@pytest.mark.slow
def test_the_command_trains_a_gpt_in_four_stages_over_a_slow_link():
    options = ["--ranks", "4", "--fault", "link 1-2 delay 30ms"]
    result = subprocess.run(
        [*_SLACKLINE, "run", *options, str(EXAMPLE), *SMALL],
        capture_output=True,
        text=True,
        env={**os.environ, "SLACKLINE_RAILS": "tcp"},
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "leaked" not in result.stderr
    check(result.stdout)
