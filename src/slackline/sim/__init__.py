"""A discrete-event simulator of ranks and links that runs the same plans as the real engine.

_events.py     the event queue, in integer picoseconds
_network.py    channels: latency, rate, a queue in order, changes over time
_pipeline.py   pipeline plans run in their fixed order or as inputs become ready
"""

from slackline.sim._events import EventQueue
from slackline.sim._network import Channel, Network
from slackline.sim._pipeline import Run, Span, simulate

__all__ = ["Channel", "EventQueue", "Network", "Run", "Span", "simulate"]
