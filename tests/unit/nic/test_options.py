import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from slackline.env import Environment
from slackline.errors import UsageError
from slackline.nic import NativeNic, NicOptions
from slackline.testing import MemoryStore, run_ranks

PLANS = "direct, mesh, ring, reduce-broadcast, halving-doubling, torus, flat-tree"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"order": "best"}, "order must be one of auto, rank, any, not 'best'"),
    ({"plan": "comet"}, f"plan must be auto or one of {PLANS}, star, hierarchical, not 'comet'"),
    ({"shares": "fair"}, "shares must be one of auto, measured, equal, not 'fair'"),
    ({"plan": "star"}, "the plan 'star' needs an aggregator: give its address"),
    ({"nic": "asic"}, "nic must be one of software, twin, circuit, not 'asic'"),
    (
        {"circuit": "lane=1"},
        "a circuit's sizes are lanes, slots, payload, operations, each named once, not 'lane=1'",
    ),
    ({"nic_check": -1}, "nic_check must be at least 0, not -1"),
    (
        {"nic": "twin", "plan": "mesh"},
        "the nic 'twin' runs the plan 'reduce-broadcast' or 'ring', not 'mesh'",
    ),
    (
        {"nic": "circuit", "aggregator": "10.0.0.9:7000"},
        "an aggregator adds for all ranks, and the nic 'circuit' adds for one rank: "
        "configure only one of them",
    ),
    (
        {"aggregator": "10.0.0.9"},
        "an address must be like 10.0.0.9:7000 or [fd00::9]:7000, not '10.0.0.9'",
    ),
    (
        {"aggregator": "a:70000"},
        "an address must be like 10.0.0.9:7000 or [fd00::9]:7000, not 'a:70000'",
    ),
    ({"rails": ()}, "rails must be some of shm, tcp, udp, not ()"),
    ({"rails": ("tcp", "rdma")}, "rails must be some of shm, tcp, udp, not ('tcp', 'rdma')"),
    (
        {"wire_segment_bytes": 4032},
        "wire_segment_bytes must be a multiple of 64 from 4096 to 16777216, not 4032",
    ),
    (
        {"order": "rank", "plan": "ring"},
        "the plan 'ring' does not sum in rank order",
    ),
    (
        {"memory_segment_bytes": 10_000},
        "memory_segment_bytes must be a multiple of 64 from 4096 to 16777216, not 10000",
    ),
    ({"eager_bytes": -1}, "eager_bytes must be at least 0, not -1"),
    ({"arena_bytes": 1 << 20}, "arena_bytes must be at least 16777216, not 1048576"),
    ({"checksums": "some"}, "checksums must be one of wire, all, none, not 'some'"),
    ({"connections": 0}, "connections must be 1 to 16, not 0"),
    ({"connections": 17}, "connections must be 1 to 16, not 17"),
    ({"interfaces": ("eth0", "eth0")}, "each interface may be named once, not ('eth0', 'eth0')"),
    ({"listen": "lo"}, "listen must be one of all, loopback, not 'lo'"),
    ({"tls": "on"}, "tls must be one of off, require, not 'on'"),
    ({"timeout": timedelta(0)}, "timeout must be positive, not 0:00:00"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG)
def test_a_wrong_option_is_named_with_its_value(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as caught:
        NicOptions(**wrong)
    assert str(caught.value) == text


def test_an_empty_environment_gives_the_defaults() -> None:
    assert NicOptions.from_env(Environment()) == NicOptions()


def test_an_interface_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(
        UsageError, match=r"^interface 'none0' has no address; interfaces with an address: .*lo"
    ):
        NativeNic(NicOptions(interfaces=("none0",)))


def test_a_key_that_is_missing_or_short_is_named(tmp_path: Path) -> None:
    short = tmp_path / "key"
    with pytest.raises(UsageError) as caught:
        NativeNic(NicOptions(key=short))
    assert str(caught.value) == f"the key {str(short)!r} cannot be read: No such file or directory"
    short.write_bytes(b"fifteen letters")
    with pytest.raises(UsageError) as caught:
        NativeNic(NicOptions(key=short))
    assert str(caught.value) == f"the key {str(short)!r} must have at least 16 bytes, not 15"


def failures_of(*options: NicOptions) -> list[BaseException]:
    """Return the error that open_group raises on each rank if rank i has the i-th options."""
    store = MemoryStore()
    raised: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        nic = NativeNic(options[rank])
        try:
            nic.open_group(store, rank, len(options), timeout=timedelta(seconds=10))
        except UsageError as error:
            raised[rank] = error
        finally:
            nic.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(options))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [raised[rank] for rank in range(len(options))]


def test_the_origin_of_an_engines_setting_is_environment_default_or_argument() -> None:
    environment = Environment(plan="ring", segment=65536, rails=("shm", "udp"))
    options = NicOptions(plan="ring", wire_segment_bytes=65536, rails=("tcp",), shares="equal")
    assert options.origins(environment) == {
        "order": ("auto", "default"),
        "plan": ("ring", "environment"),
        "shares": ("equal", "argument"),
        "aggregator": ("", "default"),
        "rails": ("tcp", "argument"),
        "segment": ("64KiB", "environment"),
    }
    # The default is an argument if the environment asks for another value.
    assert NicOptions().origins(environment)["plan"] == ("auto", "argument")


DIFFERENT: list[tuple[str, Any, Any]] = [
    ("order", "rank", "any"),
    ("plan", "ring", "mesh"),
    ("shares", "auto", "equal"),
    ("rails", ("tcp",), ("shm", "tcp")),
    ("wire_segment_bytes", 4096, 8192),
    ("memory_segment_bytes", 4096, 8192),
    ("eager_bytes", 0, 4096),
    ("connections", 1, 2),
    ("checksums", "all", "none"),
    ("tls", "off", "require"),
]
VARIABLES = {
    "order": "SLACKLINE_ORDER",
    "plan": "SLACKLINE_PLAN",
    "shares": "SLACKLINE_SHARES",
    "rails": "SLACKLINE_RAILS",
    "wire_segment_bytes": "SLACKLINE_SEGMENT",
    "memory_segment_bytes": "SLACKLINE_SEGMENT",
    "arena_bytes": "SLACKLINE_ARENA",
    "timeout": "SLACKLINE_TIMEOUT",
    "tls": "SLACKLINE_TLS",
}


@pytest.mark.parametrize(("name", "first", "second"), DIFFERENT)
def test_ranks_with_different_options_are_told_which_and_whose(
    name: str, first: Any, second: Any
) -> None:
    options = [NicOptions(**{"arena_bytes": 16 << 20, name: value}) for value in (first, second)]
    errors = failures_of(*options)
    shown = [list(value) if isinstance(value, tuple) else value for value in (first, second)]
    variable = f" ({VARIABLES[name]})" if name in VARIABLES else ""
    for rank, error in enumerate(errors):
        assert str(error) == (
            f"{name}{variable} is {shown[1 - rank]!r} on rank {1 - rank} but {shown[rank]!r} on "
            f"rank {rank}: every rank needs the same"
        )


@pytest.mark.parametrize(
    ("name", "values", "shown"),
    [
        ("arena_bytes", (16 << 20, 1 << 30), ("16MiB", "1GiB")),
        ("timeout", (None, timedelta(seconds=1.5)), ("the group's", "1500ms")),
    ],
)
def test_a_rank_with_another_arena_or_timeout_is_named_with_both_values(
    name: str,
    values: tuple[Any, Any],
    shown: tuple[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = [
        NicOptions(**{"arena_bytes": 16 << 20, name: value}) for value in (*values, values[0])
    ]
    run_ranks(3, lambda group: group.barrier(blocking=True), options=options.__getitem__)
    usual, odd = shown
    called = f"{name} ({VARIABLES[name]})"
    assert {each.getMessage() for each in caplog.records} == {
        f"{called} is {odd!r} on rank 1 but {usual!r} on rank 0: give every rank the same",
        f"{called} is {usual!r} on rank 0 but {odd!r} on rank 1: give every rank the same",
    }
    assert len(caplog.records) == 2


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_group_is_refused(rank: int) -> None:
    nic = NativeNic(NicOptions(arena_bytes=16 << 20))
    with pytest.raises(UsageError) as caught:
        nic.open_group(MemoryStore(), rank, 2, timeout=timedelta(seconds=1))
    nic.close()
    assert str(caught.value) == f"rank must be 0 to 1, not {rank}"
