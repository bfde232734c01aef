"""Tests of generated files: each one is committed and equals the current output of its
generator."""

import difflib
import subprocess
import sys
from pathlib import Path

import pytest

from slackline import wire

ROOT = Path(__file__).parents[2]


def assert_same(path: str, generated: str) -> None:
    committed = (ROOT / path).read_text() if (ROOT / path).exists() else ""
    diff = difflib.unified_diff(
        committed.splitlines(), generated.splitlines(), f"{path} as committed", "as generated"
    )
    if text := "\n".join(diff):
        pytest.fail(f"{text}\n\n{path} is out of date: run `make generate`", pytrace=False)


def test_the_cpp_frame_header_is_what_the_table_generates() -> None:
    assert_same("native/include/slackline/wire.h", wire.cpp_header())


def test_the_stub_is_what_the_extension_generates() -> None:
    from nanobind.stubgen import StubGen

    from slackline import _native

    stub = StubGen(_native)
    stub.put(_native)
    assert_same("src/slackline/_native.pyi", stub.get())


def test_the_page_of_the_command_line_is_what_the_commands_generate() -> None:
    words = [sys.executable, "-m", "typer", "slackline.cli", "utils", "docs"]
    done = subprocess.run(
        [*words, "--name", "slackline", "--title", "Command line"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert_same("docs/command-line.md", done.stdout)
