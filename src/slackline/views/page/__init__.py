"""A page that shows a job live, and afterwards, from the telemetry of its ranks.

    _server    the HTTP server, in a thread of its own
    _guard     the checks of requests: the host's name, the token, the headers of responses
    _feed      the panels' content, computed again when there are new records
    _faults    the times of faults, which all charts shade
    _steps     panels: the ranks' pace, step times of the whole run
    _promises  panel: predicted step times beside measured ones
    _links     panel: the matrix of links, and the history of a link
    _timeline  panel: operations, waits and computation of the latest steps
    _pipeline  panel: the instructions of a pipeline's step, and its bubbles
    _messages  panels: causes, findings, decisions and problems, as sentences
    static/    the page: HTML, styles, scripts, and the chart library uPlot with its licence

The page needs the extra `dashboard`, loads nothing from elsewhere, and shows only text
from records as text.
"""

from slackline.views.page._feed import Panels
from slackline.views.page._server import DEFAULT_PORT, Dashboard

__all__ = ["DEFAULT_PORT", "Dashboard", "Panels"]
