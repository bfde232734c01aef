"""Tests that every command of the pages works, and that every block has the right mark."""

import ast
import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from page_blocks import NEEDS, PAGES, ROOT, Block, blocks

from slackline import circuit
from slackline.cli import app, main
from slackline.errors import UsageError
from slackline.lab import records, require, take_down

SECONDS = 600
"""The limit for one block, by which a hang is found; the longest takes 4 minutes on busy cores."""
LINKED = ("Makefile", "benchmarks", "examples", "native", ".venv")
"""The parts of the repository that commands of the pages use."""
PROGRAM = re.compile(
    r"(\$ )?(\w+=\S+ )*(slackline|make|torchrun|pip|python3?|apt|\.venv/bin/\w+)( |$)"
)
"""The beginning of a line that is a command."""

FIGURE = re.compile(r"(?<![\w>])\d+(?:\\\.\d+)?(?!>)")
"""A figure in an escaped pattern, but not the ranks of a link, as in "link 0>1"."""
SHELL = re.compile(r"[&|;<>$`*?\\\\]")
"""Characters with a meaning for the shell."""
CALLED = ("plan", "reproduce", "simulate")
"""Commands that start no process, so that a test may call them within its own."""

EVERY = [block for page in PAGES for block in blocks(page)]
COMMANDS = [block for block in EVERY if block.commands]


def pages(*, slow: bool, need: str = "") -> list[str]:
    """Return the pages with blocks that are slow, or not, and have the requirement `need`."""
    found = {
        block.page
        for block in COMMANDS
        if not block.elsewhere and block.slow == slow and block.need == need
    }
    return sorted(found)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make a reader's directory, with links to the parts of the repository that commands use."""
    for name in LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    # `make` is to take the environment as it is: tests run in the one that it would make.
    make = tmp_path / "bin" / "make"
    make.parent.mkdir()
    make.write_text(f'#!/bin/sh\nexec {shutil.which("make")} -o .venv/.package "$@"\n')
    make.chmod(0o755)
    return tmp_path


def execute(block: Block, desk: Path) -> str:
    """Execute the block's commands and return the output."""
    commands = [shlex.split(line, comments=True) for line in block.body.splitlines()]
    quick = {("slackline", name) for name in CALLED}
    if SHELL.search(block.body) or not {tuple(words[:2]) for words in commands} <= quick:
        return start(block, desk)
    return call(block.place, [words[1:] for words in commands], desk)


def call(place: str, commands: list[list[str]], desk: Path) -> str:
    """Call `slackline` with the words of each command within this process; return the output."""
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(desk):
        patch.setenv("COLUMNS", "200")
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            codes = [main(words) for words in commands]
    assert set(codes) == {0}, f"{place} ended with {codes}:\n{output.getvalue()}"
    return output.getvalue()


def start(block: Block, desk: Path) -> str:
    """Start the block's commands in a shell, end all processes that they leave, and return the
    output."""
    path = f"{desk / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    # The output goes to a file: a program that a failed block leaves would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", block.body],
            cwd=desk,
            env={**os.environ, "PATH": path, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # all have ended by themselves
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        printed = output.read()
    assert process.returncode == 0, f"{block.place} ended with {process.returncode}:\n{printed}"
    return printed


def pattern_of(line: str, *, measured: bool) -> re.Pattern[str]:
    """Return the pattern of a line that a page shows; "…" stands for anything.

    In a line of measured figures, any figures and any spaces between them fit.
    """
    pattern = re.escape(line.strip()).replace("…", ".*")
    if measured:
        pattern = FIGURE.sub(r"\\d+(?:\\.\\d+)?", re.sub(r"(\\ )+", r"\\s+", pattern))
    return re.compile(pattern)


def compare(shown: Block, printed: str) -> None:
    """Assert that the lines shown are printed in this order."""
    rest = iter(printed.splitlines())
    for line in shown.body.splitlines():
        pattern = pattern_of(line, measured=shown.title == "measured")
        assert any(pattern.fullmatch(each.strip()) for each in rest), (
            f"{shown.place}: {line!r} is not printed, or not in this order:\n{printed}"
        )


def test_measured_lines_fit_other_figures_and_no_other_words() -> None:
    shown = "step (ms)   36.55 [35.51, 37.16]   5 us"
    assert pattern_of(shown, measured=True).fullmatch("step (ms) 136 [5.1, 3.16] 12.4 us")
    assert not pattern_of(shown, measured=True).fullmatch("step (ms) 136 [5.1, 3.16] 12.4 ms")
    assert not pattern_of(shown, measured=False).fullmatch("step (ms) 136 [5.1, 3.16] 12.4 us")
    link = pattern_of("from 12.9 s (named at 15.8 s): link 0>1: it is slow.", measured=True)
    assert link.fullmatch("from 2 s (named at 5.81 s): link 0>1: it is slow.")
    assert not link.fullmatch("from 2 s (named at 5.81 s): link 1>0: it is slow.")
    assert pattern_of("…loss 5…", measured=True).fullmatch("the loss 6.1 falls")


def follow(page: str, desk: Path, *, slow: bool, need: str = "") -> None:
    """Write the page's files, execute its commands in order, and compare their output."""
    printed: str | None = None
    for block in EVERY:
        if block.page != page:
            continue
        if block.title in ("output", "measured"):
            if printed is not None:
                compare(block, printed)
        elif block.title:
            (desk / block.title).write_text(block.body)
        elif block.commands:
            chosen = not block.elsewhere and (not block.slow or (slow and block.need == need))
            printed = execute(block, desk) if chosen else None


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("page", pages(slow=False))
def test_the_quick_commands_of_a_page(page: str, desk: Path) -> None:
    follow(page, desk, slow=False)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("page", pages(slow=True))
def test_the_commands_of_a_page(page: str, desk: Path) -> None:
    follow(page, desk, slow=True)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("page", pages(slow=True, need="root"))
def test_the_commands_of_a_page_that_make_a_lab(page: str, desk: Path) -> None:
    try:
        require()
    except UsageError as error:
        pytest.skip(str(error))
    try:
        follow(page, desk, slow=True, need="root")
    finally:  # A failed command may leave a lab, whose daemon began in the reader's directory.
        for record in records():
            if record.alive and Path(f"/proc/{record.pid}/cwd").resolve() == desk.resolve():
                take_down(record)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize("page", pages(slow=True, need="verilator"))
def test_the_commands_of_a_page_that_simulate(page: str, desk: Path) -> None:
    if missing := circuit.missing_tools():
        pytest.skip(missing)
    follow(page, desk, slow=True, need="verilator")


def words_of(body: str) -> Iterator[list[str]]:
    """Yield the words of each `slackline` command in a block, without redirections and `&`."""
    for line in body.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if "slackline" not in words:
            continue
        start = words.index("slackline") + 1
        ends = [at for at, word in enumerate(words) if at > start and word in ("&", ">", "|", ";")]
        yield words[start : min(ends, default=len(words))]


@pytest.mark.parametrize(
    "block",
    [block for block in COMMANDS if "slackline " in block.body],
    ids=lambda block: block.place,
)
def test_a_command_has_the_options_that_it_is_given(block: Block) -> None:
    for words in words_of(block.body):
        command = typer.main.get_command(app)
        context = command.make_context("slackline", list(words), resilient_parsing=False)
        while hasattr(command, "resolve_command"):
            _, words, _ = command.make_parser(context).parse_args(list(words))
            if not words:
                break  # the command has subcommands and runs without one
            _, command, words = command.resolve_command(context, words)
            assert command is not None
            context = command.make_context(command.name, list(words), parent=context)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "command-line.md"],  # generated: it shows usages
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_blocks_of_a_page_are_marked_as_what_they_are(page: Path) -> None:
    for block in blocks(page):
        if block.commands:
            assert block.test == "" or block.elsewhere or block.slow, f"{block.place}: {block.test}"
            assert block.need in ("", *NEEDS), f"{block.place}: {block.need}"
            assert not block.elsewhere or (ROOT / block.elsewhere).exists(), block.place
        else:
            lines = [line.strip() for line in block.body.splitlines()]
            commands = [line for line in lines if PROGRAM.match(line)]
            assert block.language == "python" or not commands, f"{block.place}: {commands}"
        if block.language == "python":
            ast.parse(textwrap.dedent(block.body), filename=block.place)
