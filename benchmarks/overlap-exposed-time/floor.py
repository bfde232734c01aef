"""The least communication time that any schedule leaves exposed: a step on an ideal wire.

No function here has side effects.

The layers are 1..n in the order of the forward pass. Layer i computes forward for the time f_i and
backward for b_i. The gradients of layer i take the time c_i if no other gradients use the wire.

    backward   |b_n|b_n-1| ... |b_1|
    forward                         |f_1|f_2| ... |f_n|     of the next step
    wire           |   n's .. 1's gradients, most urgent first   |

Two rules bind every schedule. Layer i's gradients exist when b_i has ended, not before. f_i begins
when layer i's parameters have been updated, which is when its gradients are reduced. The wire can
be divided at will, without a pause and without latency. The best schedule then gives the whole
wire, at every moment, to the lowest layer whose gradients wait. To see this, exchange two pieces of
the wire's time so that a lower layer is sent earlier: only layers that are needed later are
delayed.

Backward n begins when forward n has ended, and forward n has waited for all gradients. The wire is
therefore empty at the beginning of each backward pass, so one step alone determines the time of all
steps.

A bound follows, in terms of wire time minus overlappable time. All gradients must be reduced before
f_n, and the wire is empty until b_n has ended, so that

    exposed >= sum(c) - (sum(b) - b_n) - (sum(f) - f_n)

where the brackets are the computation that can overlap: the backward pass after the first gradient,
and the next forward pass except its last layer. The same holds for every part of the model that
begins with layer 1: exposed >= c_1 at least, since b_1 is the last to end and f_1 the first to
begin. `exposed_floor` simulates the best schedule and so takes the largest of all these bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The times of one layer, in seconds: forward, backward, and its gradients on the wire."""

    forward: float
    backward: float
    wire: float


def exposed_floor(layers: Sequence[Layer]) -> float:
    """Return the seconds of a step in which an ideal schedule computes nothing."""
    ready = _emitted(layers)
    left = [layer.wire for layer in layers]
    clock = 0.0
    finished = [0.0] * len(layers)
    while any(work > 0 for work in left):
        waiting = [i for i, work in enumerate(left) if work > 0 and ready[i] <= clock]
        coming = min(
            (at for at, work in zip(ready, left, strict=True) if work > 0 and at > clock),
            default=None,
        )
        if not waiting:
            assert coming is not None
            clock = coming
            continue
        first = waiting[0]
        ends = clock + left[first]
        if coming is not None and coming < ends:
            left[first] -= coming - clock
            clock = coming
        else:
            left[first] = 0.0
            clock = finished[first] = ends
    now = sum(layer.backward for layer in layers)
    exposed = 0.0
    for layer, done in zip(layers, finished, strict=True):
        exposed += max(0.0, done - now)
        now = max(now, done) + layer.forward
    return exposed


def whole_model_bound(layers: Sequence[Layer]) -> float:
    """Return max(0, wire time minus overlappable time) of the whole model, in seconds.

    The result is never above `exposed_floor`.
    """
    wire = sum(layer.wire for layer in layers)
    backward = sum(layer.backward for layer in layers[:-1])
    forward = sum(layer.forward for layer in layers[:-1])
    return max(0.0, wire - backward - forward)


def _emitted(layers: Sequence[Layer]) -> list[float]:
    """Return the times at which each layer's gradients are computed, from the start of backward."""
    clock, ready = 0.0, [0.0] * len(layers)
    for index in reversed(range(len(layers))):
        clock += layers[index].backward
        ready[index] = clock
    return ready
