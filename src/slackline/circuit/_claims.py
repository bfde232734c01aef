"""Invariants beside the gateware they are about; they are there for a proof only."""

from amaranth.hdl import Assert, Assume, Module, Value

__all__ = ["assume", "claim", "ones"]


def claim(m: Module, platform: object, *invariants: Value) -> None:
    """Each holds in every cycle. On the platform "formal" they are to be proved, else nothing."""
    if platform == "formal":
        m.d.comb += [Assert(each) for each in invariants]


def assume(m: Module, platform: object, *conditions: Value) -> None:
    """What the circuit needs of those around it, in every cycle, for its claims to hold."""
    if platform == "formal":
        m.d.comb += [Assume(each) for each in conditions]


def ones(bits: Value) -> Value:
    """How many bits are high."""
    return sum(bits[1:], bits[0])
