"""A network on one machine: hosts as namespaces, rates, delays, faults (Linux, root).

_options.py     hosts, NICs, rates
_names.py       namespaces, interfaces, addresses
_commands.py    a lab as lines of ip, bridge and tc: pure data
_system.py      runs them
_ownership.py   who owns a lab, and how what a dead owner left is cleaned
_lab.py         Lab: up on entry, down on exit
"""

from slackline.lab._executor import Executor, Injection
from slackline.lab._fabrics import PathCount
from slackline.lab._lab import Lab
from slackline.lab._options import SWITCHES, LabOptions, check_name
from slackline.lab._ownership import Record, clean, records
from slackline.lab._standing import command, find, inject, stand_up, status, take_down
from slackline.lab._system import require

__all__ = [
    "SWITCHES",
    "Executor",
    "Injection",
    "Lab",
    "LabOptions",
    "PathCount",
    "Record",
    "check_name",
    "clean",
    "command",
    "find",
    "inject",
    "records",
    "require",
    "stand_up",
    "status",
    "take_down",
]
