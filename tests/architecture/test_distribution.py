"""Tests that no page and no message tells a user to install a stranger's package."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STRANGER = re.compile(
    r"pip3? install[^\n`;&|]*?[\s'\"]slackline(?=[\s'\"\[=<>~]|$)|\bslackline\[[a-z]"
)
"""An installation of "slackline", or an extra of it: the index has another project of that name."""


def test_no_text_installs_the_stranger_s_package() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md", "*.toml", "*.yml", "*.html", "*.js", "Makefile", ".ci"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    found = [
        f"{name}:{number}: {line.strip()}"
        for name in listed.stdout.split()
        if name != "tests/architecture/test_distribution.py"
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if STRANGER.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "strange"),
    [
        ("pip install slackline", True),
        ("pip install -U 'slackline>=0.1'", True),
        ("needs `slackline[tls]`", True),
        ("pip install 'slackline-torch[tls]'", False),
        ("pip install slackline_torch-0.1.0-*.whl", False),
        ("pip install rich; slackline doctor", False),
    ],
)
def test_the_pattern_tells_the_two_projects_apart(line: str, strange: bool) -> None:
    assert bool(STRANGER.search(line)) == strange
