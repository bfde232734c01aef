"""The pipeline runtime: a small interpreter of pipeline plans on torch's stages.

Schedule ─ _schedule            what the user sees
    _terms, _plans, _policy     what the ranks agree on; the plan; how strictly it is kept
    _batches                    a batch into microbatches and back
    _runner                     one rank's part of a step: dispatch, compute, send, block
        _worker                 F, B, W of one stage
            _gradients          added in microbatch order; complete, scaled, reduced
        _mail                   messages between stages; arrivals wake the rank
            _parcel, _tags      what a message looks like; which tags it uses
            _lane, _device      from where the stage computes to host memory, and back
            _delegation         who carries a message: the engine or the computing thread
    _follow, _adapt, _news      a plan that follows what all ranks have measured
    _record                     what happened when
    _torch                      the adapter to torch's untyped edges
"""

from slackline.pipeline._policy import POLICIES, Policy
from slackline.pipeline._record import Came, Sent, Span, StepRecord, Wait
from slackline.pipeline._schedule import Schedule
from slackline.plan.pipeline import from_torch_csv

__all__ = [
    "POLICIES",
    "Came",
    "Policy",
    "Schedule",
    "Sent",
    "Span",
    "StepRecord",
    "Wait",
    "from_torch_csv",
]
