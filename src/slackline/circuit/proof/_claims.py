"""Functions that state invariants of the gateware; only formal proofs compile the invariants."""

from amaranth.hdl import Assert, Assume, Module, Value

__all__ = ["assume", "claim", "ones"]


def claim(m: Module, platform: object, *invariants: Value) -> None:
    """Assert that each invariant holds in every cycle, if `platform` is "formal"."""
    if platform == "formal":
        m.d.comb += [Assert(each) for each in invariants]


def assume(m: Module, platform: object, *conditions: Value) -> None:
    """Assume that the circuit's surroundings meet each condition in every cycle.

    The circuit's claims are proved under these assumptions. Nothing is added unless `platform` is
    "formal".
    """
    if platform == "formal":
        m.d.comb += [Assume(each) for each in conditions]


def ones(bits: Value) -> Value:
    """Return the number of bits that are high."""
    return sum(bits[1:], bits[0])
