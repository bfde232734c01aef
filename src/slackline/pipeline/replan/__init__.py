"""Replanning: new pipeline plans from the measurements of all ranks, made while training goes on.

_metrics      the exchange of measurements between the ranks
_decision     the decision whether to make a new plan: a pure function
foresight     the forecasts of the links' delays, with which plans are made ahead
_search       the search for the plan, in a process of its own on one rank
_trial        the choice of the fastest among the plans that are found
_replanner    the distribution of a new plan to all ranks, which adopt it at the same step
"""

from slackline.pipeline.replan._decision import warm_up
from slackline.pipeline.replan._metrics import MetricsExchange
from slackline.pipeline.replan._replanner import Forecaster, Replanner, can_replan

__all__ = ["Forecaster", "MetricsExchange", "Replanner", "can_replan", "warm_up"]
