"""Experiments of the simulator, as TOML files describe them.

_file   an experiment, read from its file
_case   one simulation of an experiment, and its figures
_kinds  the kinds of experiments: collectives, training steps, replicas of a pipeline
_links  one pipeline on links with given delays
_node   an aggregation node
"""

from slackline.sim.experiment._case import Case, Figures
from slackline.sim.experiment._file import Experiment, read_experiment

__all__ = [
    "Case",
    "Experiment",
    "Figures",
    "read_experiment",
]
