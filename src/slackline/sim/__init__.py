"""A discrete-event model of ranks and links that runs the same plans as the real thing.

_events.py     what happens next: a queue in integer picoseconds
_network.py    channels: latency, rate, a queue in order, changes over time
_pipeline.py   pipeline plans in their fixed order or as readiness finds it
"""

from slackline.sim._events import EventQueue
from slackline.sim._network import Channel, Network
from slackline.sim._pipeline import Run, Span, simulate

__all__ = ["Channel", "EventQueue", "Network", "Run", "Span", "simulate"]
