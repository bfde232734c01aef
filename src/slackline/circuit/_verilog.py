"""A circuit as Verilog, with what a host program must know of its ports."""

import hashlib
from dataclasses import dataclass

__all__ = ["Port", "Verilog"]


@dataclass(frozen=True, kw_only=True)
class Port:
    """A wire of the top module, less clock and reset."""

    name: str
    width: int
    input: bool


@dataclass(frozen=True, kw_only=True)
class Verilog:
    """The text of a circuit whose top module is `name`."""

    name: str
    text: str
    ports: tuple[Port, ...]

    @property
    def key(self) -> str:
        """A hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()
