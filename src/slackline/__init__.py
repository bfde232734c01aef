"""Distributed PyTorch training at full speed on networks that are not perfect.

    errors, units             the tree of errors; sizes, rates and durations as text
    wire, plan, env           the frame format, plans of each rank as data, the environment
    faults                    faults of a network as data
    records                   what the ranks of a job write down: telemetry and failures
    detect                    detection of slow links: direction, start and reason
    sim                       a discrete-event simulator that runs the same plans
    circuit                   gateware that reduces, and its bit-exact models in Python
    nic                       the engine that moves and reduces bytes; the aggregation node
    lab                       a network on one machine: hosts as namespaces, rates, faults
    history                   the state of a job, live and afterwards, from its records
    backend                   torch.distributed's backend "slackline"
    causes                    what made steps slow, and what ended a job
    overlap                   training that reduces each gradient as soon as it is ready
    pipeline                  pipeline plans run on torch's stages as inputs become ready
    elastic                   training that continues after the loss of ranks
    predict                   step times of a measured run on another network
    views                     a job on a terminal, on a page, as metrics and as traces
    testing, cli              public fakes, and the `slackline` command

Importing this package never imports torch. torch learns the backend's name whichever of the two
packages is imported first (docs/decisions/0001-how-torch-learns-the-backend.md).
"""

import importlib
import sys
from types import ModuleType

from slackline import _process_end as _process_end  # registers its handler now
from slackline import errors
from slackline._registration import register

__version__ = "0.1.0"

__all__ = ["__version__", "errors", "register"]

_PACKAGES = frozenset({"backend", "causes", "circuit", "detect", "elastic", "faults", "history"})
_PACKAGES |= {"lab", "nic", "overlap", "pipeline", "plan", "predict", "records", "sim", "testing"}
_PACKAGES |= {"units", "wire"}

if "torch" in sys.modules:
    register()


def __getattr__(name: str) -> ModuleType:
    """Import a subpackage at first use: `slackline.overlap` needs no import of its own."""
    if name in _PACKAGES:
        return importlib.import_module(f"slackline.{name}")
    raise AttributeError(f"module 'slackline' has no attribute {name!r}")
