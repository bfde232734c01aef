"""The size of the groups in which an optimizer's gradients are reduced.

_tuning     the size: given, or found by trial
_trial      a trial of several sizes during training
_turns      the order of the steps of a trial
_drift      detection of a lasting change of the step time, which starts a new trial
"""

from slackline.overlap.reduction.tuning._tuning import Tuning

__all__ = ["Tuning"]
