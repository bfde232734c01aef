"""The command `slackline plan pipeline`.

_command    its options
_input      the scenario that the options describe
_model      a model cut into stages on a cluster
_report     reports on a plan: text, JSON, tables
_gantt      a plan as a chart
"""

from slackline.cli._plan_pipeline._command import pipeline

__all__ = ["pipeline"]
