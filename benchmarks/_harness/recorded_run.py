"""The slow phases of the large-scale run of Adaptra's authors (arXiv 2504.19232), on 8 stages.

A NIC fails in the last iterations.
"""

from __future__ import annotations

ITERATIONS, LASTS, NIC_FAILS = 1200, 70, 1030
"""The number of iterations, of those of each slow phase, and the iteration of the NIC's failure."""
EVENTS: tuple[tuple[int, tuple[int, ...], int], ...] = (
    (15, (2,), 30),
    (120, (0, 5), 40),
    (230, (6,), 20),
    (340, (2, 3, 6), 50),
    (450, (5,), 60),
    (560, (1, 6), 60),
    (670, (0, 4), 20),
    (780, (0, 1, 2), 40),
    (890, (4, 5), 50),
)
"""The slow phases: (first iteration, slow links, delay in ms)."""
