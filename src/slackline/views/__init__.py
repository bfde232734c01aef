"""Views of a job, live and afterwards: the state of `slackline.history`, the names of `causes`.

    _summary    the run in ten lines, which several views end or begin with
    terminal/   the screen of `slackline top`; the output and the tables of `slackline run`
    page/       a page in a browser                         (extra: dashboard)
    metrics/    metrics for Prometheus                      (extra: metrics)
    trace/      traces for Perfetto, Chrome, OpenTelemetry  (extras: trace, opentelemetry)

A view derives nothing on its own: all of them show the same causes at the same times.
"""

from slackline.views._garbage import search_seldom
from slackline.views._summary import Line, summary_of

__all__ = ["Line", "search_seldom", "summary_of"]
