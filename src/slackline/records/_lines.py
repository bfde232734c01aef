"""The JSON form of telemetry: one record is one line, which `slackline.history` reads.

The field "record" names the kind of the record. A reader skips fields and kinds that it does not
know, so that an older reader can follow a newer writer.
"""

import json

from slackline.records._operations import COLUMNS, Operations, OperationsText
from slackline.records._records import (
    ClockOffset,
    Conditions,
    Counters,
    Decision,
    DeviceReport,
    FileHeader,
    Gap,
    GroupOpened,
    HashedTensors,
    LinkReport,
    LinkVerdict,
    PipelineStep,
    Promise,
    RailChange,
    Record,
    RunSummary,
    Setting,
    StateHash,
    StepSummary,
    TensorHashes,
    Written,
)

__all__ = ["KINDS", "encode"]

KINDS: dict[str, type[Record]] = {
    "file": FileHeader,
    "gap": Gap,
    "clock": ClockOffset,
    "link": LinkReport,
    "decision": Decision,
    "setting": Setting,
    "operations": Operations,
    "step": StepSummary,
    "opened": GroupOpened,
    "counters": Counters,
    "run": RunSummary,
    "verdict": LinkVerdict,
    "pipeline": PipelineStep,
    "promise": Promise,
    "rail": RailChange,
    "hash": StateHash,
    "conditions": Conditions,
    "tensors": HashedTensors,
    "hashes": TensorHashes,
    "device": DeviceReport,
}
"""The value of the field "record" in each kind of record."""

_NAMES = {kind: name for name, kind in KINDS.items()}


def encode(record: Written) -> str:
    """Return the record as a line of JSON, without the newline; fields of None are left out."""
    if isinstance(record, OperationsText):
        columns = json.dumps(COLUMNS, separators=(",", ":"))
        return (
            f'{{"record":"operations","rank":{record.rank},"lost":{record.lost},'
            f'"columns":{columns},"rows":[{record.rows}]}}'
        )
    known = {name: value for name, value in vars(record).items() if value is not None}
    if isinstance(record, Operations):
        known = {**known, "columns": COLUMNS, "rows": record.rows}
    return json.dumps({"record": _NAMES[type(record)], **known}, separators=(",", ":"))
