"""The Verilog text of a circuit, with the ports that a host program must know."""

import hashlib
from dataclasses import dataclass

__all__ = ["Port", "Verilog"]


@dataclass(frozen=True, kw_only=True)
class Port:
    """A wire of the top module, other than clock and reset."""

    name: str
    width: int
    input: bool


@dataclass(frozen=True, kw_only=True)
class Verilog:
    """A circuit's Verilog text, whose top module is `name`."""

    name: str
    text: str
    ports: tuple[Port, ...]

    @property
    def key(self) -> str:
        """The SHA-256 hash of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()
