"""The records of hashes: of a training's state, and of the tensors that two runs may differ in."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Conditions", "HashedTensors", "StateHash", "TensorHashes", "differences"]


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the name and both values of each condition that differs, "-" for a missing value."""
    names = [*one, *(name for name in other if name not in one)]
    values = ((name, one.get(name, "-"), other.get(name, "-")) for name in names)
    return [each for each in values if each[1] != each[2]]


@dataclass(frozen=True, kw_only=True)
class StateHash:
    """A rank's part of the hash of the state after a step with virtual ranks.

    The state is parameters, buffers and optimizer states. The hash of the state is the sum of all
    parts, each half of 16 digits modulo 2**64; it does not depend on the number of parts.
    """

    rank: int
    """The rank in the job that has written the record."""
    time_ns: int
    """Unix time at which the hash was known."""
    step: int
    """The number of the step, as the script passed it to `parts`."""
    part: int
    """The number of the rank's part."""
    parts: int
    """The number of parts: that of the group's ranks."""
    hash: str
    """The part's hash, 32 hex digits."""
    exact: bool = True
    """Whether all ranks have computed the same bits in the first step; else other numbers of ranks
    may give other hashes."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """All that is known to change the bits of a training, on one rank."""

    rank: int
    """The rank in the job."""
    time_ns: int
    """Unix time at which the model was wrapped."""
    values: Mapping[str, str]
    """The value of each condition by its name: {"torch": "2.13.0", "threads": "1"}."""


@dataclass(frozen=True, kw_only=True)
class HashedTensors:
    """The names of the tensors whose hashes follow in records `TensorHashes` of the rank."""

    rank: int
    """The rank in the job."""
    time_ns: int
    """Unix time of the record."""
    parameters: tuple[str, ...]
    """The names of the parameters, in the order of the hashes of gradients and of sums."""
    state: tuple[str, ...]
    """The names of the parameters, buffers and parts of the optimizers' states, in the order of the
    hashes of the state."""


@dataclass(frozen=True, kw_only=True)
class TensorHashes:
    """The hash of each tensor of one kind, recorded where two runs are to be compared."""

    rank: int
    """The rank in the job that has computed the tensors."""
    time_ns: int
    """Unix time of the record."""
    step: int
    """The number of the step, as the script passed it to `parts`."""
    what: str
    """"gradients" of a virtual rank, "sums" of all of them, or "state" after the step."""
    virtual_rank: int
    """The virtual rank of gradients; -1 for sums and the state."""
    hashes: str
    """16 hex digits for each tensor, one after the other; sixteen "-" for a tensor that is
    missing."""
    order: tuple[int, ...] = ()
    """The numbers of the parameters in the order in which the backward pass gave their gradients;
    empty for sums and the state."""
