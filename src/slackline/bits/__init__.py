"""The bits of runs with virtual ranks: the hashes that a run has recorded, and two runs compared.

_evidence  all that a run has recorded about its bits, from the files of its ranks
_compare   the first step after which two runs differ
_bisect    the virtual rank, tensor and rank at which they part in that step
"""

from typing import TYPE_CHECKING

from slackline._lazy import lazily

if TYPE_CHECKING:
    from slackline.bits._bisect import Parting, bisect
    from slackline.bits._compare import Comparison, compare
    from slackline.bits._evidence import Evidence
else:
    __getattr__ = lazily(
        __name__,
        {"_bisect": "Parting bisect", "_compare": "Comparison compare", "_evidence": "Evidence"},
    )

__all__ = ["Comparison", "Evidence", "Parting", "bisect", "compare"]
