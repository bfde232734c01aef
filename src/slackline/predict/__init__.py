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
_predict.py     predicted step times, with reasons and warnings
"""

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
from slackline.predict._predict import DEFAULT_SAMPLES, Prediction, predict
from slackline.predict._run import Computation, Group, Link, Run, Step
from slackline.predict._telemetry import load_telemetry as load

__all__ = [
    "CHANGES",
    "DEFAULT_SAMPLES",
    "JOB_FILE",
    "Bucket",
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
    "PlanChange",
    "Prediction",
    "Ranks",
    "Rate",
    "Run",
    "Schedule",
    "Step",
    "load",
    "parse_change",
    "parse_changes",
    "predict",
    "read_job",
    "write_job",
]
