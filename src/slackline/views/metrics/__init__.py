"""The metrics of a job for Prometheus.

    _labels     values of labels, and the bounds of their number
    _collector  the metrics of a job, made from its state at each scrape
    _endpoint   the HTTP endpoint that Prometheus scrapes, and the token that opens it

The package needs the extra `metrics`.
"""

from slackline.views.metrics._collector import metrics_text, registry_of
from slackline.views.metrics._endpoint import Endpoint

__all__ = ["Endpoint", "metrics_text", "registry_of"]
