"""Traces of a run, for viewers: all ranks' telemetry on one clock, as tracks, slices and arrows.

    _window      records of several ranks that belong together
    _events      tracks, slices, instants and samples: the parts of every trace
    _operations  operations of the engines: slices, waits, and arrows from the rank that was late
    _steps       training steps and their gradients
    _pipeline    pipeline steps: instructions, messages, and arrows from the stage that sent
    _causes      the causes of slow steps, on the ranks that they concern
    _links       samples of links; verdicts, decisions and gaps
    _trace       all events of a run, and the writer that a format needs
    _perfetto    Perfetto's protobuf traces                              (extra: trace)
    _chrome      the Trace Event Format of Chrome, in JSON
    _spans       steps and operations as spans of OpenTelemetry  (extra: opentelemetry)
    _export      spans of a run, and of a job that is still running, for an exporter

Nothing here needs torch.
"""

from slackline.views.trace._events import Event, Instant, Process, Sample, Slice, Track
from slackline.views.trace._export import export_spans, write_spans
from slackline.views.trace._trace import Totals, TraceFormat, events_of, write_trace

__all__ = [
    "Event",
    "Instant",
    "Process",
    "Sample",
    "Slice",
    "Totals",
    "Track",
    "TraceFormat",
    "events_of",
    "export_spans",
    "write_spans",
    "write_trace",
]
