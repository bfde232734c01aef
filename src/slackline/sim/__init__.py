"""A discrete-event simulator of hosts, NICs and links that runs the same plans as the engine.

_events.py      a queue of events in integer picoseconds
_fabric.py      hosts, NICs and the switch, as data
_ahead.py       bytes that no urgent frame overtakes, from the limits of engine and kernel
_conditions.py  the effects of faults, from one change to the next
_machine.py     the native machine that moves frames and runs threads: native/src/sim
_operation.py   a collective's plan with sizes, cut into segments
_execution.py   the execution of that plan, with values
_bound.py       times that no execution can undercut
_collective.py  one collective on an idle fabric
_series.py      a collective that is called again and again, with a barrier before each call
_alike.py       a collective in which all hosts do the same, so that only one is simulated
_rotation.py    the plans with which all hosts do the same
_flows.py       an all_reduce round a ring of hosts, simulated as flows instead of frames
_calibration.py the measured costs of a host, and simulated hosts drawn from them
_training.py    training steps of data-parallel ranks
_aggregation.py a model of an aggregation node whose workers send at their own pace
_sharing.py     transfers that share a host's memory, cores and NIC
_delegation.py  messages that helper processes carry through the hosts' memory
_network.py     channels of a pipeline: latency, rate, a queue in order, changes over time
_pipeline.py    pipeline plans run in their fixed order or as inputs become ready
_hybrid.py      replicas of a pipeline on the same fabric
experiment/     experiments as TOML files
"""

from slackline.sim._aggregation import Aggregation, AggregationRun, Senders, simulate_aggregation
from slackline.sim._ahead import engine_ahead_bytes
from slackline.sim._alike import simulate_alike
from slackline.sim._bound import Bound, lower_bound
from slackline.sim._calibration import CALIBRATION_VERSION, Costs, HostCalibration, Spread
from slackline.sim._collective import CollectiveRun, simulate_collective
from slackline.sim._delegation import Delegation
from slackline.sim._events import EventQueue
from slackline.sim._execution import Arithmetic, SentFrame, Symbols
from slackline.sim._fabric import Fabric, Framing, Host
from slackline.sim._flows import FlowRun, simulate_flows
from slackline.sim._hybrid import HybridRun, simulate_hybrid
from slackline.sim._network import SENDS, Channel, Network
from slackline.sim._operation import Operation
from slackline.sim._pipeline import Run, Span, simulate
from slackline.sim._series import simulate_series
from slackline.sim._training import (
    Layer,
    Policy,
    StepTimes,
    TrainingRun,
    form_groups,
    simulate_training,
)
from slackline.sim.experiment import Case, Experiment, Figures, read_experiment

__all__ = [
    "CALIBRATION_VERSION",
    "SENDS",
    "Aggregation",
    "AggregationRun",
    "Arithmetic",
    "Bound",
    "Case",
    "Channel",
    "CollectiveRun",
    "Costs",
    "Delegation",
    "EventQueue",
    "Experiment",
    "Fabric",
    "Figures",
    "FlowRun",
    "Framing",
    "Host",
    "HostCalibration",
    "HybridRun",
    "Layer",
    "Network",
    "Operation",
    "Policy",
    "Run",
    "Senders",
    "SentFrame",
    "Span",
    "Spread",
    "StepTimes",
    "Symbols",
    "TrainingRun",
    "engine_ahead_bytes",
    "form_groups",
    "lower_bound",
    "read_experiment",
    "simulate",
    "simulate_aggregation",
    "simulate_alike",
    "simulate_collective",
    "simulate_flows",
    "simulate_hybrid",
    "simulate_series",
    "simulate_training",
]
