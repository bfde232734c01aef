"""The twin of a circuit's registers over Ethernet: a Python model with the same answers."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace

from slackline.circuit.options import RegisterCode, RegisterRequest

__all__ = ["RegisterTwin"]


@dataclass(kw_only=True)
class RegisterTwin:
    """A model of RegisterPort without cycles: the same answers and writes, one after the other."""

    registers: MutableMapping[int, int]
    """The values of the registers that can be written, by address."""
    count: int = field(init=False, default=0)
    """The writes that were executed."""
    peer: int = field(init=False, default=0)
    """The MAC address of the host whose write was executed last."""
    _number: int = field(init=False, default=0)

    def take(self, source: int, request: RegisterRequest) -> RegisterRequest | None:
        """Return the answer to a request from the MAC address `source`; None if there is none."""
        if request.code not in (RegisterCode.READ, RegisterCode.WRITE):
            return None
        if request.code is RegisterCode.READ:
            value = self.registers.get(request.address, 0)
            return replace(request, code=RegisterCode.DONE, value=value, count=self.count)
        if request.count == (self.count + 1) & 0xFFFFFFFF:
            self.count, self.peer, self._number = request.count, source, request.number
            if request.address in self.registers:
                self.registers[request.address] = request.value
        done = (request.count, source, request.number) == (self.count, self.peer, self._number)
        code = RegisterCode.DONE if done else RegisterCode.STALE
        return replace(request, code=code, count=self.count)
