"""The user-space switch of a lab: a process that forwards frames between the NICs of all hosts.

    python -m slackline.lab._switch '{"nics": 2, "rate": 0, "namespaces": [path, ...]}'

The process creates the NICs and then prints one line of JSON: {"ready": true, "realtime": bool}, or
{"error": text}. "realtime" says whether the switch has real-time priority. Each line on standard
input is a request and gets one line as its answer:

{"paths": [...], "ports": [...]}    sets exactly these faults: {"applied": true}
{"counters": true}                  returns the switch's counters

The process ends when its standard input closes, for example because its owner ended, or when a
namespace is deleted.
"""

import json
import os
import sys
import threading
from typing import Any

from slackline import _native

COUNTERS = (
    "source",
    "target",
    "nic",
    "frames",
    "bytes",
    "lost",
    "duplicated",
    "reordered",
    "corrupted",
    "unplugged",
    "overflowed",
)


def main(arguments: list[str]) -> int:
    """Run the switch that the first argument describes, until standard input closes."""
    wanted = json.loads(arguments[0])
    namespaces = wanted["namespaces"]
    try:
        switch = _native.Switch(len(namespaces), wanted["nics"], wanted["rate"])
        for path in namespaces:
            for nic in range(wanted["nics"]):
                switch.add_nic(path, f"eth{nic}")
    except RuntimeError as error:
        _say({"error": str(error)})
        return 1
    threading.Thread(target=_obey, args=[switch], daemon=True).start()
    _say({"ready": True, "realtime": _before_all_others()})
    switch.run()
    return 0


def _before_all_others() -> bool:
    """Try to give this thread real-time priority, so that frames do not wait for a free core.

    Returns whether the thread now has real-time priority. Without the permission, as in some
    containers, delays are only as exact as the machine's load allows.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


def _obey(switch: _native.Switch) -> None:
    """Answer requests from standard input until standard input closes, then stop the switch."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "counters" in asked:
            rows = [{name: getattr(row, name) for name in COUNTERS} for row in switch.counters()]
            _say({"paths": rows, "refused": switch.refused})
        else:
            switch.apply(
                [tuple(path) for path in asked["paths"]], [tuple(p) for p in asked["ports"]]
            )
            _say({"applied": True})
    switch.stop()


def _say(what: dict[str, Any]) -> None:
    """Write one JSON line to standard output."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
