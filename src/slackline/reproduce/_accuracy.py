"""The accuracy of a network that is trained in two ways over the same engine, by a real job.

The job is a script that `slackline run` starts on several ranks. Rank 0 prints one JSON object, as
examples/train_digits.py does with `--compare slackline --json`.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackline.errors import UsageError

__all__ = ["Accuracy", "Trained", "read_accuracy", "train_both_ways"]

_COMMAND = "import sys; from slackline.cli import main; sys.exit(main())"


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A network that one method has trained to the end."""

    name: str
    """The method and its transport: "PCCO over slackline"."""
    accuracy: float
    """The share of the test images that the network classifies correctly, from 0 to 1."""
    parameters: str
    """A hash of all parameters, equal exactly if all bits of two networks are equal."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """The networks that the methods of one job have trained from the same initial parameters."""

    ranks: int
    epochs: int
    networks: tuple[Trained, ...]

    @property
    def unchanged(self) -> bool:
        """Whether all networks have equal bits, and so the same accuracy."""
        return len({(each.parameters, each.accuracy) for each in self.networks}) == 1


def train_both_ways(script: Path, *, ranks: int, epochs: int) -> Accuracy:
    """Run a script by PCCO and by DistributedDataParallel over slackline, and return both results.

    Gradients are added in the order of the ranks, so that both ways have the same sums. Blocks
    until the job has ended; the output of a failed job is on the standard error stream. Raises
    UsageError for a script that does not exist, that fails, or whose output has another form.
    """
    if not script.is_file():
        raise UsageError(
            f"there is no script {script}; examples/train_digits.py is in slackline's repository"
        )
    for name, value, least in (("ranks", ranks, 2), ("epochs", epochs, 3)):
        if value < least:
            raise UsageError(f"{name} must be at least {least}, not {value}")
    job = [sys.executable, "-c", _COMMAND, "run", "--ranks", str(ranks), str(script)]
    ended = subprocess.run(
        [*job, "--compare", "slackline", "--epochs", str(epochs), "--json"],
        env={**os.environ, "SLACKLINE_ORDER": "rank"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise UsageError(f"{script} ended with code {ended.returncode}; its output says why")
    return read_accuracy(ended.stdout, str(script))


def read_accuracy(text: str, name: str) -> Accuracy:
    """Return the results in the JSON object that the script `name` has printed.

    Raises UsageError, which names the script, for text of another form.
    """
    try:
        given = json.loads(text)
        settings, results = given["settings"], given["results"]
        networks = tuple(map(_trained, results))
        found = Accuracy(
            ranks=int(settings["ranks"]), epochs=int(settings["epochs"]), networks=networks
        )
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"{name} must print one JSON object with its results: {problem}") from None
    if len(networks) < 2:
        raise UsageError(f"{name} must train by at least 2 methods, not {len(networks)}")
    return found


def _trained(result: dict[str, Any]) -> Trained:
    return Trained(
        name=str(result["name"]),
        accuracy=float(result["accuracy"]),
        parameters=str(result["parameters"]),
    )
