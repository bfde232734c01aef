"""The reductions of one optimizer's gradients, from autograd to each parameter's update.

From the top floor down; each module calls those below it, and hands its answers up:

_read_tracker       a read waits for the values that it needs
  _lazy_parameters    reads through a module or an optimizer
_gradient_reducer   what to do when a gradient arrives, the user calls `step`, or a value is read
  _hooks              autograd's hooks, as few as the program allows
  _pending_updates    the optimizer's own step on some parameters, later
  _gradient_step      what has arrived and been posted since the latest step
  _grouping           membership of the groups, and their layout in memory
    _observed_order     the order in which backward passes produce gradients
    tuning/             the size of the groups
  _reductions         the reductions that are in flight
    _gradient_group     several gradients in one reduction
_model_state        what the reducers of a model's optimizers and its readers share
  _watched_parameters reads of parameter objects that the program keeps
_parameter_state    one parameter's gradient
_compiled_autograd  an error for backward passes that are compiled
"""

from slackline.overlap.reduction._gradient_group import Divisor
from slackline.overlap.reduction._gradient_reducer import GradientReducer
from slackline.overlap.reduction._grouping import Grouping
from slackline.overlap.reduction._lazy_parameters import LazyGroup, LazyParameters
from slackline.overlap.reduction._parameter_state import (
    ParameterState,
    clear_grad,
    flat_request,
)
from slackline.overlap.reduction._read_tracker import ReadTracker

__all__ = [
    "Divisor",
    "GradientReducer",
    "Grouping",
    "LazyGroup",
    "LazyParameters",
    "ParameterState",
    "ReadTracker",
    "clear_grad",
    "flat_request",
]
