"""Performers for the tests of rank processes, in a module that these processes can import."""

import os

from _harness.ranks import Place


class Obliging:
    """A performer (the object that does a rank's work) that executes its commands."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def who(self) -> tuple[int, int]:
        return self._place.rank, self._place.size

    def add(self, left: int, right: int) -> int:
        return left + right

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def fail_at(self, rank: int) -> None:
        """Raise on `rank`; every other rank waits forever."""
        if self._place.rank == rank:
            raise ValueError(f"rank {rank} has had enough")
        self._wait_forever()

    def die_at(self, rank: int) -> None:
        """Exit on `rank` without a message; every other rank waits forever."""
        if self._place.rank == rank:
            os._exit(7)
        self._wait_forever()

    @staticmethod
    def _wait_forever() -> None:
        reader, _writer = os.pipe()
        os.read(reader, 1)
