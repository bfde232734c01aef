"""Predictions of the step time that a measured run would have on another network.

    run = predict.load(Path("kept"))
    predict.predict(run, [predict.parse_change("rate 10Gbit")]).p50_ns

_job.py         the command line of a run, kept beside its telemetry
_run.py         a measured run, as data
_changes.py     the grammar of changes: "nics 2", "plan star"
_setting.py     the conditions of a simulated run, and the effect of each change
_model.py       the simulation, with computations drawn from measured steps
_calibrate.py   the rate of the network, from the measured times of reductions
_telemetry.py   the reader of a run from telemetry
_spans.py       a run from the spans of its reductions, for traces of other programs
_kineto.py      the reader of traces of torch.profiler
_chakra_schema.py, _chakra.py, _chakra_reader.py   Chakra execution traces: messages, writer, reader
_load.py        the reader of a directory of any of these kinds
_pipeline.py, _pipeline_model.py   measured pipelines, and their simulation under changes
_predict.py     predicted step times, with reasons and warnings
"""

from slackline.predict._chakra import export_chakra
from slackline.predict._changes import (
    CHANGES,
    Bucket,
    Change,
    Compute,
    FaultChange,
    Hosts,
    Latency,
    Nics,
    PlanChange,
    Ranks,
    Rate,
    Schedule,
    parse_change,
    parse_changes,
)
from slackline.predict._job import JOB_FILE, Job, read_job, write_job
from slackline.predict._load import load
from slackline.predict._pipeline import (
    Cap,
    PipelineRun,
    PipelineTimes,
    has_pipeline,
    load_pipeline,
)
from slackline.predict._predict import DEFAULT_SAMPLES, Prediction, predict
from slackline.predict._run import Computation, Group, Link, Run, Step

__all__ = [
    "CHANGES",
    "DEFAULT_SAMPLES",
    "JOB_FILE",
    "Bucket",
    "Cap",
    "Change",
    "Computation",
    "Compute",
    "FaultChange",
    "Group",
    "Hosts",
    "Job",
    "Latency",
    "Link",
    "Nics",
    "PipelineRun",
    "PipelineTimes",
    "PlanChange",
    "Prediction",
    "Ranks",
    "Rate",
    "Run",
    "Schedule",
    "Step",
    "export_chakra",
    "has_pipeline",
    "load",
    "load_pipeline",
    "parse_change",
    "parse_changes",
    "predict",
    "read_job",
    "write_job",
]
