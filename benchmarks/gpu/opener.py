"""A process that opens gates: it stores to shared memory, whoever has the other process's GIL.

Each line of its input has an offset, a value of 32 bits, and the microseconds until the store.
"""

import mmap
import struct
import sys
import time
from pathlib import Path


def main() -> None:
    with Path(sys.argv[1]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for line in sys.stdin:
            offset, value, microseconds = map(int, line.split())
            time.sleep(microseconds / 1e6)
            struct.pack_into("<I", memory, offset, value)


if __name__ == "__main__":
    main()
