"""The reductions of one optimizer's gradients, from autograd to each parameter's update.

_gradient_reducer   posting and awaiting the reductions of one optimizer, put together from
  _parameter_state    one parameter's gradient
  _gradient_group     several gradients in one reduction
  _arrivals, _hooks   detection of complete groups, with few hooks
  _grouping           membership of the groups, and their layout in memory
    _observed_order     the order in which backward passes produce gradients
    tuning/             the size of the groups
  _deferred           the optimizer's own step on some parameters, later
  _compiled_autograd  an error for backward passes that are compiled
  _read_tracker       a read waits for the values that it needs
    _lazy_parameters    reads through a module or an optimizer
    _watched_parameters reads of parameter objects that the program keeps
"""

from slackline.overlap.reduction._gradient_reducer import GradientReducer
from slackline.overlap.reduction._lazy_parameters import LazyGroup, LazyParameters
from slackline.overlap.reduction._parameter_state import (
    Clear,
    ParameterState,
    clear_grad,
    flat_request,
)
from slackline.overlap.reduction._read_tracker import ReadTracker

__all__ = [
    "Clear",
    "GradientReducer",
    "LazyGroup",
    "LazyParameters",
    "ParameterState",
    "ReadTracker",
    "clear_grad",
    "flat_request",
]
