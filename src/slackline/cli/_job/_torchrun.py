"""The options of torchrun among the words of `slackline run`, read by torchrun's own parser.

    slackline run --nproc-per-node 2 --max-restarts 3 --tee 3 -m job.train --epochs 4
                  --------------------------------------------  torchrun's: see `Torchrun`

An option that `slackline run` does not define is one of torchrun, up to the script. torch is
imported only if there is such an option.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import typer.core

from slackline.cli._job._launch import Place
from slackline.errors import UsageError

__all__ = ["NO_OPTIONS", "Torchrun", "TorchrunCommand", "read_torchrun", "torchrun_words"]

_KEY = "slackline.torchrun"
_MEETING = (
    *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--local-addr"),
    *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf"),
)
"""The options by which the nodes of a job meet."""
_READ = (*_MEETING, "--nproc-per-node", "--standalone", "--tee")
"""The options that are not passed on as they are."""
_OUTPUT = (
    *("--log-dir", "--redirects", "--logs-specs", "--local-ranks-filter"),
    *("--duplicate-stdout-filters", "--duplicate-stderr-filters"),
)
_SHORT = {"-t": "--tee", "-r": "--redirects"}


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """The options of torchrun that a command line has."""

    ranks: int | None = None
    """The value of --nproc-per-node, as torchrun counts "auto", "cpu" and "gpu"."""
    nodes: int = 1
    """The number of machines, of --nnodes."""
    node: int = 0
    """The number of this machine, of --node-rank."""
    meeting: tuple[str, ...] = ()
    """The options by which the machines meet, unchanged; empty for one machine."""
    all_output: bool = False
    """Whether --tee asks for the output of all ranks."""
    python: bool = True
    """Whether the program is one of Python: --no-python is not given."""
    passed: tuple[str, ...] = ()
    """All other options, unchanged."""

    def place(self, ranks: int) -> Place | None:
        """Return the place of a job with `ranks` ranks on each node; None for one machine."""
        if self.nodes == 1:
            return None
        return Place(rendezvous=self.meeting, first=self.node * ranks, world=self.nodes * ranks)


NO_OPTIONS = Torchrun()
"""The options of a command line without options of torchrun."""


class TorchrunCommand(typer.core.TyperCommand):
    """A command that takes torchrun's options beside its own; `torchrun_words` returns them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {
            name: not getattr(parameter, "is_flag", False)
            for parameter in self.get_params(ctx)
            if parameter.param_type_name == "option"
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        mine, theirs = split(args, own)
        ctx.meta[_KEY] = theirs
        return super().parse_args(ctx, mine)


def torchrun_words(context: Any) -> list[str]:
    """Return the words of a command line that are options of torchrun, with their values."""
    words: list[str] = context.meta.get(_KEY, [])
    return words


def split(words: Sequence[str], own: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """Return the words of `slackline run` itself, and torchrun's options before the script.

    `own` has the options of `slackline run`, each with whether it takes a value. An option that
    nobody knows stays with the first ones, for the command to refuse.
    """
    mine: list[str] = []
    theirs: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "--"):
        word = words[at]
        name, equals, _ = word.partition("=")
        name = f"--{name[2:].replace('_', '-')}" if name.startswith("--") else name[:2]
        complete = bool(equals) or (not word.startswith("--") and len(word) > 2)
        where, takes_value = mine, own.get(name)
        if takes_value is None:
            takes_value = _options().get(name)
            where = mine if takes_value is None else theirs
        count = 2 if takes_value and not complete else 1
        where += [f"{name}{word[len(name) :]}", *words[at + 1 : at + count]]
        at += count
    return [*mine, *words[at:]], theirs


def read_torchrun(words: Sequence[str]) -> Torchrun:
    """Return the options in `words`, by torchrun's own parser.

    Raises UsageError for a value that torchrun refuses, for an option about output, which
    `slackline run` keeps itself, and for nodes that get their numbers only while the job runs.
    """
    if not words:
        return NO_OPTIONS
    found = _parsed(words)
    pairs = _pairs(words)
    given = {_SHORT.get(name, name) for name, *_ in pairs}
    if refused := sorted(given & set(_OUTPUT)):
        raise UsageError(
            f"{refused[0]}: slackline run keeps the output of every rank itself; --keep names the "
            "directory, and --output the ranks that are shown"
        )
    nodes, node = _nodes(found, given)
    return Torchrun(
        ranks=_ranks(found.nproc_per_node) if "--nproc-per-node" in given else None,
        nodes=nodes,
        node=node,
        meeting=tuple(
            word
            for name, *rest in pairs
            if nodes > 1 and name in _MEETING
            for word in (name, *rest)
        ),
        all_output="--tee" in given,
        python=not found.no_python,
        passed=tuple(
            word
            for name, *rest in pairs
            if _SHORT.get(name, name) not in _READ
            for word in (name, *rest)
        ),
    )


def _nodes(found: argparse.Namespace, given: set[str]) -> tuple[int, int]:
    """Return the number of nodes, and the number of this one."""
    least, _, most = found.nnodes.partition(":")
    if not least.isdecimal() or not (most or least).isdecimal() or int(least) < 1:
        raise UsageError(f"--nnodes must be a number of machines, not {found.nnodes!r}")
    if least == "1" and most in ("", "1"):
        if lonely := sorted(given & set(_MEETING) - {"--nnodes"}):
            raise UsageError(f"{lonely[0]} is for a job of several machines: add --nnodes")
        return 1, 0
    if most not in ("", least):
        raise UsageError(
            f"--nnodes {found.nnodes}: slackline run starts a fixed number of machines; "
            "slackline.elastic goes on with fewer"
        )
    if found.rdzv_backend != "static" or "--node-rank" not in given:
        raise UsageError(
            f"--nnodes {found.nnodes} needs --node-rank, --master-addr and --master-port on each "
            "machine, or --hosts a,b in place of all of them"
        )
    if not 0 <= found.node_rank < int(least):
        raise UsageError(
            f"--node-rank must be between 0 and {int(least) - 1}, not {found.node_rank}"
        )
    return int(least), found.node_rank


def _ranks(text: str) -> int:
    from torch.distributed.run import determine_local_world_size

    try:
        return int(determine_local_world_size(text))
    except ValueError as error:
        raise UsageError(f"--nproc-per-node {text}: {error}") from None


def _pairs(words: Sequence[str]) -> list[list[str]]:
    """Return each option with its value, if it has one: [["--max-restarts", "3"]]."""
    found: list[list[str]] = []
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("--") and name in _options():
            found.append([name, value] if equals else [word])
        elif word[:2] in _SHORT and word.startswith("-") and not word.startswith("--"):
            found.append([word[:2], *([word[2:]] if len(word) > 2 else [])])
        else:
            found[-1].append(word)
    return found


def _parsed(words: Sequence[str]) -> argparse.Namespace:
    parser: Any = _parser()

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"torchrun's option: {message}")

    parser.error = refuse
    found: argparse.Namespace = parser.parse_args([*words, "script"])
    return found


def _parser() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


@cache
def _options() -> dict[str, bool]:
    """Return torchrun's options, each with whether it takes a value."""
    return {
        name: action.nargs != 0
        for action in _parser()._actions  # argparse has no other list of them
        for name in action.option_strings
        if name not in ("-h", "--help") and "_" not in name
    }
