"""Partitions: a model's layers cut into pipeline stages, and the stages placed on hosts.

_profile    the layers of a model: their times, sizes and memory
_cluster    hosts with devices that differ, and the links between them
_file       profiles and clusters as TOML or JSON
_cut        a cut: the layers and the host of each stage, with the scenario that follows from it
_bound      the cut with the shortest fill and steady state, by dynamic programming
_links      the time of a plan over links that carry one message at a time
_improve    a descent from good cuts, which compares the times of planned iterations
_partition  the choice of a cut, with the order of its computations
"""

from slackline.plan.partition._cluster import Cluster, Host, Link, Pair
from slackline.plan.partition._cut import Cut, even_cut
from slackline.plan.partition._file import Model, format_profile, parse_model
from slackline.plan.partition._partition import Partition, Placed, evaluate, partition
from slackline.plan.partition._profile import Layer, Profile

__all__ = [
    "Cluster",
    "Cut",
    "Host",
    "Layer",
    "Link",
    "Model",
    "Pair",
    "Partition",
    "Placed",
    "Profile",
    "evaluate",
    "even_cut",
    "format_profile",
    "parse_model",
    "partition",
]
