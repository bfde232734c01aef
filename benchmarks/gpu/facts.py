"""The facts about the machine: versions, the card, and what its driver can do."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess

import torch
from rank import Rank

import slackline

__all__ = ["run"]

_ATTRIBUTES = {
    "waits on values in memory (version 1)": 92,
    "waits for a NOR of values": 123,
    "maps host memory": 19,
    "engines for copies": 40,
}
"""Attributes of a device by the numbers that cuda.h gives them (CUdevice_attribute)."""
_SYMBOLS = ("cuStreamWaitValue32_v2", "cuMemHostGetDevicePointer_v2")
_ASKED = (
    "name,driver_version,compute_mode,pcie.link.gen.current,pcie.link.width.current,clocks.sm,"
    "memory.total"
)


def run(rank: Rank) -> None:
    rank.note(
        "versions",
        torch=torch.__version__,
        python=platform.python_version(),
        slackline=slackline.__version__,
        cores=len(os.sched_getaffinity(0)),
    )
    if rank.cpu:
        rank.skip("the card", "no device")
        return
    properties = torch.cuda.get_device_properties(rank.device)
    rank.note("the card", name=properties.name, memory_gib=properties.total_memory >> 30)
    driver = ctypes.CDLL("libcuda.so.1")
    value = ctypes.c_int()
    for name, number in _ATTRIBUTES.items():
        failed = driver.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        rank.note(name, value=f"error {failed}" if failed else value.value)
    for name in _SYMBOLS:
        rank.note(f"the driver has {name}", value=str(hasattr(driver, name)))
    if shutil.which("nvidia-smi") is None:
        rank.skip("nvidia-smi", "not installed")
        return
    asked = ["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    rank.note("nvidia-smi", **dict(zip(_ASKED.split(","), told.split(", "), strict=True)))
