"""Distributed PyTorch training at full speed on networks that are not perfect.

    errors, units             what goes wrong, and quantities as people write them
    wire, plan, env           the frame, what each rank does as data, the environment
    faults                    what goes wrong on a network, as data
    nic, telemetry            the engine that moves and reduces bytes, and what it counts
    health                    which link is slow, in which direction, since when and why
    sim                       a discrete-event model that runs the same plans
    circuit                   gateware that reduces, and its bit-exact twins
    lab                       a network on one machine: hosts as namespaces, rates, faults
    backend                   torch.distributed's backend "slackline"
    pipeline                  pipeline plans run on torch's stages, by readiness
    overlap                   training that reduces each parameter as it is ready
    testing, cli              public fakes, and the `slackline` command

Importing this package never imports torch; torch learns the backend's name whichever of the two
is imported first (docs/decisions/0001-how-torch-learns-the-backend.md).
"""

import importlib
import sys
from types import ModuleType

from slackline import errors
from slackline._registration import register

__version__ = "0.1.0"

__all__ = ["__version__", "errors", "register"]

_ROOMS = frozenset({"backend", "faults", "lab", "nic", "overlap", "plan", "telemetry", "testing"})
_ROOMS |= {"circuit", "health", "pipeline", "sim", "units", "wire"}

if "torch" in sys.modules:
    register()


def __getattr__(name: str) -> ModuleType:
    """Opens a room at first use: `slackline.overlap` needs no import of its own."""
    if name in _ROOMS:
        return importlib.import_module(f"slackline.{name}")
    raise AttributeError(f"module 'slackline' has no attribute {name!r}")
