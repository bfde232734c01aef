"""The metrics of a job for Prometheus.

_labels     values of labels, and the bounds of their number
_collector  the metrics of a job, made from its state at each scrape
_endpoint   the HTTP endpoint that Prometheus scrapes, and the token that opens it
_options    the addresses and tokens of command lines, checked
"""
