"""A rank on a host of a lab: `matrix_lab_rank.py RANK SIZE FOLDER RAIL`.

Each line of its input gives a number of rounds of the matrix's work. The rank performs them over
the given rails (paths to a peer) and answers with its counters.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from folder_store import FolderStore
from matrix_table import LAB_RAILS
from matrix_work import work

from slackline.nic import NativeNic

TIMEOUT = timedelta(seconds=20)


def main(rank: int, size: int, folder: str, rail: str) -> None:
    nic = NativeNic(LAB_RAILS[rail].options(interfaces=()))
    group = nic.open_group(FolderStore(Path(folder), TIMEOUT), rank, size, timeout=TIMEOUT)
    answers = os.fdopen(os.dup(1), "w")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(work(group, int(line))), file=answers, flush=True)
    group.close()
    nic.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
