"""Performers for the tests of rank processes, importable by the processes themselves."""

import os

from _harness.ranks import Place


class Obliging:
    """Does what it is told, and knows who it is."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def who(self) -> tuple[int, int]:
        return self._place.rank, self._place.size

    def add(self, left: int, right: int) -> int:
        return left + right

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def fail_at(self, rank: int) -> None:
        """Raises at `rank`; every other rank waits for what never comes."""
        if self._place.rank == rank:
            raise ValueError(f"rank {rank} has had enough")
        self._wait_forever()

    def die_at(self, rank: int) -> None:
        """Leaves at `rank` without a word; every other rank waits for what never comes."""
        if self._place.rank == rank:
            os._exit(7)
        self._wait_forever()

    @staticmethod
    def _wait_forever() -> None:
        reader, _writer = os.pipe()
        os.read(reader, 1)
