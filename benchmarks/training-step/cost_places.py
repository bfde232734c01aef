"""The places in the code to which the cost of a training step belongs, and samples of stacks.

A sample is a stack as py-spy writes it: the frames from the outermost to the innermost one, as
"function (file:line)", with a semicolon between two frames. The function in which C++ computes is
the innermost frame.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

PLACES = (
    ("hooks and arrivals", ("reduction/_hooks.py", "_gradient_reducer.py", "_gradient_step.py")),
    ("groups of gradients", ("reduction/_gradient_group.py", "_grouping.py", "_reductions.py")),
    ("states of parameters", ("reduction/_parameter_state.py", "reduction/_watched")),
    (
        "deferred updates",
        ("_pending_updates.py", "_partial_step", "_optimizer_patch", "_choice.py"),
    ),
    ("other files of the overlap", ("slackline/overlap/",)),
    ("NIC engine", ("slackline/nic/",)),
    ("backend", ("slackline/backend/",)),
    ("other files of slackline", ("slackline/",)),
    ("optimizer", ("torch/optim/",)),
    ("DDP", ("torch/nn/parallel/",)),
    ("autograd", ("torch/autograd/graph.py", "torch/autograd/__init__.py", "torch/_tensor.py")),
    ("layers", ("torch/nn/", "training-step/models.py")),
    ("other files of torch", ("torch/",)),
)
"""The names of places, each with parts of the paths of its files; the first one that fits.

The first five are files of slackline.overlap. Autograd's own place has all that its engine computes
in C++: the gradients, and the copies of DDP's reducer.
"""
ELSEWHERE = "other files"
"""The place of the functions of the benchmark and of Python's library."""
PARTS = ("forward", "backward", "update", "clear")
"""The parts of a step, which are methods of a trainer."""
OTHER_THREADS = "other threads"
"""The name of the processor time of all threads but the training thread."""
_FRAME = re.compile(r"^(?P<function>.+) \((?P<file>[^()]*?)(?::\d+)?\)$")


def place_of(file: str) -> str:
    """Return the place to which the functions of a file belong."""
    for place, parts in PLACES:
        if any(part in file for part in parts):
            return place
    return ELSEWHERE


def stacks(lines: Iterable[str]) -> Iterator[tuple[list[tuple[str, str]], int]]:
    """Yield each stack as pairs of function and file, outermost first, with its samples.

    A function of a class has the class's name before it. Frames that are no function of a file,
    such as the name of a thread, are left out; a stack may have no frame, when a thread began or
    ended during a sample. Raises ValueError for a line that is not a stack and a number.
    """
    for line in lines:
        stack, space, count = line.rpartition(" ")
        if not space or not count.isdigit():
            raise ValueError(f"a line of samples must be a stack and a number, not {line!r}")
        found = map(_FRAME.match, stack.split(";"))
        yield [(frame["function"], frame["file"]) for frame in found if frame], int(count)


def shares(lines: Iterable[str], trainers: str) -> dict[tuple[str, str], float]:
    """Return the share of a step's samples by part of the step and place of the innermost frame.

    `trainers` is the end of the name of the file whose functions are the parts of a step. Samples
    of other work are left out. Raises ValueError if there is no sample of a step.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for frames, count in stacks(lines):
        ours = [name.rpartition(".")[2] for name, file in frames if file.endswith(trainers)]
        parts = [name for name in ours if name in PARTS]
        if parts:
            counts[parts[0], place_of(frames[-1][1])] += count
    if not counts:
        raise ValueError("no sample is of a training step")
    return {key: count / counts.total() for key, count in counts.items()}
