"""A test network on one machine: hosts are network namespaces, joined by a switch (Linux, root).

A fault plan changes the network over time: rates, delays, losses, links that go down.

_options.py     hosts, NICs and rates of a lab
_names.py       names of namespaces and interfaces; addresses
_commands.py    the ip, bridge and tc commands that build a lab, as pure data
_system.py      runs these commands
_ownership.py   the record of a lab's owner, and the cleanup after a dead owner
_fabrics.py     the two switches: the kernel's bridge and a user-space process
_executor.py    the thread that applies fault plans on time
_lab.py         Lab: a context manager that builds the network and removes it
_persistent.py  persistent labs, as used by the command line
enter.py        a program that moves a rank's process to its host
"""

from slackline.lab._commands import burst_bytes
from slackline.lab._executor import Executor, Injection
from slackline.lab._fabrics import PathCount, beyond_kernel
from slackline.lab._lab import Lab
from slackline.lab._options import SWITCHES, LabOptions, check_name
from slackline.lab._ownership import Record, clean, records
from slackline.lab._persistent import command, find, inject, stand_up, status, take_down
from slackline.lab._system import lacking_capabilities, require, trial

__all__ = [
    "SWITCHES",
    "Executor",
    "Injection",
    "Lab",
    "LabOptions",
    "PathCount",
    "Record",
    "beyond_kernel",
    "burst_bytes",
    "check_name",
    "clean",
    "command",
    "find",
    "inject",
    "lacking_capabilities",
    "records",
    "require",
    "stand_up",
    "status",
    "take_down",
    "trial",
]
