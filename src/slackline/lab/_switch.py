"""The process that is a lab's user switch.

    python -m slackline.lab._switch '{"nics": 2, "rate": 0, "namespaces": [path, ...]}'

One line of JSON goes out when the NICs are there: {"ready": true, "realtime": whether it goes
before all other programs}, or {"error": text}. Then each line that comes in is answered by one:
{"paths": [...], "ports": [...]} puts these faults in force ({"applied": true}); {"counters": true}
asks for what the switch has counted. It ends with its standard input, so with its owner, or when a
namespace goes.
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
    """Run the switch that the first argument describes."""
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
    """Makes this thread run whenever it has something to do: a wire does not wait for a core.

    False where a container forbids it: then delays are as exact as the machine is idle.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return False
    return True


def _obey(switch: _native.Switch) -> None:
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
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
