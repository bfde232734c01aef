"""A rank on a host of a lab: `matrix_lab_rank.py RANK SIZE FOLDER RAIL`.

Each line of its input gives a number of rounds of the matrix's work. The rank performs them over
the given rails (paths to a peer) and answers with its counters.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from matrix_table import LAB_RAILS
from matrix_work import work

from slackline.errors import TimeoutError
from slackline.nic import NativeNic

TIMEOUT = timedelta(seconds=20)


class FolderStore:
    """A store for ranks that share only files. Each value is a file that appears complete."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, key: str, value: str, /) -> None:
        path = self._path(key)
        part = path.with_name(path.name + ".part")
        part.write_text(value)
        part.rename(path)

    def get(self, key: str, /) -> bytes:
        path = self._path(key)
        deadline = time.monotonic() + TIMEOUT.total_seconds()
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the store Timed out waiting for {key!r}")
            time.sleep(0.005)
        return path.read_bytes()

    def _path(self, key: str) -> Path:
        return self._folder / key.replace("/", "-")


def main(rank: int, size: int, folder: str, rail: str) -> None:
    nic = NativeNic(LAB_RAILS[rail].options(interfaces=()))
    group = nic.open_group(FolderStore(Path(folder)), rank, size, timeout=TIMEOUT)
    answers = os.fdopen(os.dup(1), "w")
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(work(group, int(line))), file=answers, flush=True)
    group.close()
    nic.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
