"""The search of `slackline tune` for settings with which a script's steps are shorter.

_tuner       a search whose trials are real jobs
_trial       one trial: the script with some settings, ended after a number of steps
_steps       the durations of a trial's steps, from telemetry that its ranks are writing
_period      the period of a sequence of operations: a pure function
_facts       the facts about a script that its first trial shows
_candidates  the settings that may help a script: a pure function of the facts
_ranking     the order in which the candidates are tried
_search      rounds of trials, the candidates that stay, and the verdict at the end
_result      the verdict as a file of settings, as a table and as JSON
"""

from slackline.cli._tune._result import attempts_table, gain_text, result_json, result_text
from slackline.cli._tune._search import Attempt, DefaultsFailedError
from slackline.cli._tune._trial import InterruptedSearchError, Script
from slackline.cli._tune._tuner import ScriptFailedError, Tuner

__all__ = [
    "Attempt",
    "DefaultsFailedError",
    "InterruptedSearchError",
    "Script",
    "ScriptFailedError",
    "Tuner",
    "attempts_table",
    "gain_text",
    "result_json",
    "result_text",
]
