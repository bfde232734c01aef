"""The adapter to torch's untyped interfaces: CUDA streams and events."""

import torch

__all__ = ["new_event", "new_stream"]


def new_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a CUDA stream from torch's pool for the device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def new_event(*, blocking: bool, timing: bool = False) -> torch.cuda.Event:
    """Return a CUDA event; with `blocking`, a thread that waits for the event sleeps."""
    return torch.cuda.Event(enable_timing=timing, blocking=blocking)  # type: ignore[no-untyped-call]
