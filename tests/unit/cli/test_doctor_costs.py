"""Tests of the measurement of a host's costs, by ranks that are threads with real engines."""

from slackline.cli._doctor import _costs
from slackline.nic import Group, NicOptions
from slackline.testing import run_ranks


def _measure(group: Group) -> dict[str, list[float]]:
    memory = group.allocate(_costs._LONG_BYTES)
    try:
        if group.rank == 0:
            return _costs._lead(group, memory)
        _costs._follow(group, memory)
        return {}
    finally:
        group.free(memory)


def test_messages_are_measured_by_one_rank_and_answered_by_the_other() -> None:
    samples, none = run_ranks(2, _measure, options=NicOptions(rails=("shm",), arena_bytes=64 << 20))
    assert none == {}
    assert {name: len(values) for name, values in samples.items()} == {
        "message_ns": _costs._PINGS,
        "wakeup_ns": _costs._PAUSES,
        "byte_ps": _costs._LONG,
    }
    assert min(samples["message_ns"]) > 0


def test_computations_are_measured() -> None:
    samples = _costs._compute()
    assert set(samples) == {"compute_ns", "reduce_byte_ps"}
    assert all(len(values) == _costs._COMPUTATIONS for values in samples.values())
    assert min(min(values) for values in samples.values()) > 0
