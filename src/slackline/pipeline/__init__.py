"""The pipeline runtime: a small interpreter of pipeline plans on torch's stages.

In a plan, F is a forward, B a backward for the inputs, W a backward for the weights, and BW both
backwards in one.

Schedule ─ _schedule            the class that a training script uses
    _config                     ScheduleConfig, the options that are seldom changed
    _settings                   settings that the script leaves to the environment
    _agreement, _plans, _policy     agreement of the ranks; the plan; the strictness of its order
    _batches                    splitting of a batch into microbatches
    _outputs                    outputs to send to the next stage, or to merge for the caller
    _runner                     one rank's part of a step: dispatch, compute, send, block
        _worker                 F, B, W of one stage
            _gradients          gradients added in microbatch order, then scaled and reduced
        _transport              point-to-point messages between stages; arrivals wake the rank
            _message            the format of a message
            _message_buffers, _device  copies between the stage's device and host memory
            _delegation         the choice between a send by the engine or the computing thread
    replan/                     new plans from the measurements of all ranks
    _forecasts                  forecasts of the links' delays, for plans made ahead
    _record                     the times of a step's events
    _profile                    times and sizes of a model's layers, for a cut into stages
    _torch                      the adapter to torch's untyped edges
"""

from slackline.pipeline._config import ScheduleConfig
from slackline.pipeline._policy import POLICIES, Policy
from slackline.pipeline._profile import profile
from slackline.pipeline._record import Came, Sent, Span, StepRecord, Wait
from slackline.pipeline._schedule import Schedule
from slackline.plan.pipeline import from_torch_csv

__all__ = [
    "POLICIES",
    "Came",
    "Policy",
    "Schedule",
    "ScheduleConfig",
    "Sent",
    "Span",
    "StepRecord",
    "Wait",
    "from_torch_csv",
    "profile",
]
