"""The NIC: what moves and reduces one rank's bytes, and its native engine's Python face."""

from slackline.nic._interface import Group, Nic, Store, Transfer
from slackline.nic._native_nic import NativeNic
from slackline.nic._options import NicOptions
from slackline.nic._transfer import NativeTransfer

__all__ = ["Group", "NativeNic", "NativeTransfer", "Nic", "NicOptions", "Store", "Transfer"]
