import contextlib
import re
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackline.env import Environment, cache_folder, serves
from slackline.errors import UsageError


def test_a_silent_environment_decides_nothing() -> None:
    assert Environment.read({"PATH": "/bin"}) == Environment()


def test_an_empty_variable_counts_as_absent() -> None:
    assert Environment.read({"SLACKLINE_ORDER": ""}) == Environment()


def test_every_variable_is_read_in_its_unit() -> None:
    given = {
        "SLACKLINE_ORDER": "rank",
        "SLACKLINE_PLAN": "ring",
        "SLACKLINE_SHARES": "equal",
        "SLACKLINE_NIC": "twin",
        "SLACKLINE_NIC_CHECK": "100",
        "SLACKLINE_CIRCUIT": "lanes=1,payload=128",
        "SLACKLINE_CIRCUIT_TRACE": "build/nic.vcd@100-200",
        "SLACKLINE_AGGREGATOR": "10.0.0.9:7000",
        "SLACKLINE_RAILS": "tcp,shm",
        "SLACKLINE_TIMEOUT": "1.5s",
        "SLACKLINE_SEGMENT": "256KiB",
        "SLACKLINE_ARENA": "1GiB",
        "SLACKLINE_INTERFACE": "eth0,eth1",
        "SLACKLINE_LISTEN": "loopback",
        "SLACKLINE_CONGESTION": "reno",
        "SLACKLINE_TLS": "require",
        "SLACKLINE_KEY": "job.key",
        "SLACKLINE_FAULTS": "link 0-1 delay 30ms",
        "SLACKLINE_LOG": "rail=debug,plan=trace",
        "SLACKLINE_TELEMETRY": "traces",
        "SLACKLINE_REPORTS": "reports",
        "SLACKLINE_LAUNCHER": "run",
        "SLACKLINE_HANG": "90s",
        "SLACKLINE_TELEMETRY_LIMIT": "100MiB",
        "SLACKLINE_FLIGHT_RECORDER": "dumps",
        "SLACKLINE_FLIGHT_RECORDER_ENTRIES": "500",
        "SLACKLINE_GROUP_BYTES": "1MiB",
        "SLACKLINE_TENSOR_HASHES": "40-60",
        "SLACKLINE_STATE_HASH": "end",
        "SLACKLINE_SCHEDULE": "1f1b",
        "SLACKLINE_SCHEDULE_MEMORY": "4,7/2,none",
        "SLACKLINE_DELEGATION": "never",
        "SLACKLINE_AS": "gloo",
    }
    assert Environment.read(given) == Environment(
        order="rank",
        plan="ring",
        shares="equal",
        nic="twin",
        nic_check=100,
        circuit="lanes=1,payload=128",
        circuit_trace=(Path("build/nic.vcd"), range(100, 201)),
        aggregator="10.0.0.9:7000",
        rails=("tcp", "shm"),
        timeout=timedelta(seconds=1.5),
        segment=256 * 1024,
        arena=1 << 30,
        interface=("eth0", "eth1"),
        listen="loopback",
        congestion="reno",
        tls="require",
        key=Path("job.key"),
        faults="link 0-1 delay 30ms",
        log={"rail": "debug", "plan": "trace"},
        telemetry=Path("traces"),
        reports=Path("reports"),
        launcher="run",
        hang=timedelta(seconds=90),
        telemetry_limit=100 << 20,
        flight_recorder=Path("dumps"),
        flight_recorder_entries=500,
        group_bytes=1 << 20,
        tensor_hashes=range(40, 61),
        state_hash="end",
        schedule="1f1b",
        schedule_memory=(4, Fraction(7, 2), None),
        delegation="never",
        as_="gloo",
    )


@pytest.mark.parametrize(
    ("text", "steps"), [("all", [0, 1, 10**9]), ("7", [7]), ("7-9", [7, 8, 9])]
)
def test_recorded_steps_are_all_one_or_a_range(text: str, steps: list[int]) -> None:
    found = Environment.read({"SLACKLINE_TENSOR_HASHES": text}).tensor_hashes
    assert found is not None
    assert all(step in found for step in steps)
    assert text == "all" or list(found) == steps


@pytest.mark.parametrize(
    ("text", "expected"), [("4", 4), ("6/2", 3), ("7/2", Fraction(7, 2)), ("4,none", (4, None))]
)
def test_a_cap_of_activations_is_one_value_or_one_for_each_stage(
    text: str, expected: object
) -> None:
    assert Environment.read({"SLACKLINE_SCHEDULE_MEMORY": text}).schedule_memory == expected


def test_groups_of_no_bytes_reduce_each_gradient_alone() -> None:
    assert Environment.read({"SLACKLINE_GROUP_BYTES": "0B"}).group_bytes == 0


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLACKLINE_PLAN", "mesh")
    assert Environment.read().plan == "mesh"


WRONG = {
    ("SLACKLINE_ODER", "rank"): (
        "SLACKLINE_ODER is not a variable of slackline; the variables are SLACKLINE_ORDER, "
        "SLACKLINE_PLAN, SLACKLINE_SHARES, SLACKLINE_NIC, SLACKLINE_NIC_CHECK, SLACKLINE_CIRCUIT, "
        "SLACKLINE_CIRCUIT_TRACE, SLACKLINE_AGGREGATOR, SLACKLINE_RAILS, SLACKLINE_TIMEOUT, "
        "SLACKLINE_SEGMENT, SLACKLINE_ARENA, SLACKLINE_INTERFACE, SLACKLINE_LISTEN, "
        "SLACKLINE_CONGESTION, SLACKLINE_TLS, SLACKLINE_KEY, SLACKLINE_FAULTS, SLACKLINE_LOG, "
        "SLACKLINE_TELEMETRY, SLACKLINE_REPORTS, SLACKLINE_LAUNCHER, SLACKLINE_HANG, "
        "SLACKLINE_TELEMETRY_LIMIT, SLACKLINE_FLIGHT_RECORDER, SLACKLINE_FLIGHT_RECORDER_ENTRIES, "
        "SLACKLINE_GROUP_BYTES, SLACKLINE_TENSOR_HASHES, SLACKLINE_STATE_HASH, SLACKLINE_SCHEDULE, "
        "SLACKLINE_SCHEDULE_MEMORY, SLACKLINE_DELEGATION, SLACKLINE_AS"
    ),
    ("SLACKLINE_TENSOR_HASHES", "60-40"): (
        "SLACKLINE_TENSOR_HASHES: recorded steps must be \"all\", a step or FIRST-LAST, not '60-40'"
    ),
    ("SLACKLINE_FLIGHT_RECORDER_ENTRIES", "0"): (
        "SLACKLINE_FLIGHT_RECORDER_ENTRIES: a number of recorded operations must be 1 to "
        "99999999, not '0'"
    ),
    ("SLACKLINE_LOG", "rails=info"): (
        "SLACKLINE_LOG: a log is one of info, debug, trace, or SUBSYSTEM=LEVEL for some of group, "
        "setting, plan, rail, link, step, operation, not 'rails=info'"
    ),
    ("SLACKLINE_LOG", "plan=info,plan=debug"): (
        "SLACKLINE_LOG: a subsystem may be named once, not 'plan=info,plan=debug'"
    ),
    ("SLACKLINE_SHARES", "fair"): (
        "SLACKLINE_SHARES: shares must be one of auto, measured, equal, not 'fair'"
    ),
    ("SLACKLINE_ORDER", "best"): (
        "SLACKLINE_ORDER: an order must be one of auto, rank, any, not 'best'"
    ),
    ("SLACKLINE_NIC", "twim"): (
        "SLACKLINE_NIC: a nic must be one of software, twin, circuit, not 'twim'"
    ),
    ("SLACKLINE_NIC_CHECK", "-1"): (
        "SLACKLINE_NIC_CHECK: a number of operations must be an integer of at least 0, not '-1'"
    ),
    ("SLACKLINE_CIRCUIT", "lanes=1,lanes=2"): (
        "SLACKLINE_CIRCUIT: a circuit's sizes are lanes, slots, payload, operations, each named "
        "once, not 'lanes=1,lanes=2'"
    ),
    ("SLACKLINE_CIRCUIT", "payload=1KiB"): (
        "SLACKLINE_CIRCUIT: a circuit's payload must be a whole number, not '1KiB'"
    ),
    ("SLACKLINE_CIRCUIT_TRACE", "nic.fst"): (
        "SLACKLINE_CIRCUIT_TRACE: a trace must be FILE.vcd or FILE.vcd@FIRST-LAST, not 'nic.fst'"
    ),
    ("SLACKLINE_CIRCUIT_TRACE", "nic.vcd@9-8"): (
        "SLACKLINE_CIRCUIT_TRACE: a trace must be FILE.vcd or FILE.vcd@FIRST-LAST, not "
        "'nic.vcd@9-8'"
    ),
    ("SLACKLINE_RAILS", "shm,rdma"): (
        "SLACKLINE_RAILS: a rail must be one of shm, tcp, udp, not 'rdma'"
    ),
    ("SLACKLINE_RAILS", "shm,shm"): ("SLACKLINE_RAILS: each rail may be named once, not 'shm,shm'"),
    ("SLACKLINE_TIMEOUT", "30"): (
        "SLACKLINE_TIMEOUT: a duration must be a number and one of ns, us, ms, s, min, h, not '30'"
    ),
    ("SLACKLINE_TIMEOUT", "1ns"): "SLACKLINE_TIMEOUT: a timeout must be at least 1us, not '1ns'",
    ("SLACKLINE_INTERFACE", "eth0,"): (
        "SLACKLINE_INTERFACE: an interface must have a name, not 'eth0,'"
    ),
    ("SLACKLINE_INTERFACE", "eth0,eth0"): (
        "SLACKLINE_INTERFACE: each interface may be named once, not 'eth0,eth0'"
    ),
    ("SLACKLINE_LISTEN", "lo"): ("SLACKLINE_LISTEN: listen must be one of all, loopback, not 'lo'"),
    ("SLACKLINE_TLS", "on"): "SLACKLINE_TLS: tls must be one of off, require, not 'on'",
    ("SLACKLINE_AS", "nccl"): "SLACKLINE_AS: slackline serves groups of gloo, not of 'nccl'",
    ("SLACKLINE_SEGMENT", "0B"): "SLACKLINE_SEGMENT: a size must be positive, not '0B'",
}


@pytest.mark.parametrize(("variable", "text"), WRONG)
def test_a_wrong_variable_is_refused_with_its_name_and_value(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(WRONG[variable, text])}$"):
        Environment.read({variable: text})


def test_whom_to_serve_is_known_whatever_the_other_variables_are() -> None:
    assert serves({}) is None
    assert serves({"SLACKLINE_AS": "", "SLACKLINE_TIMEOUT": "soon"}) is None
    assert serves({"SLACKLINE_AS": "gloo", "SLACKLINE_ODER": "rank"}) == "gloo"
    with pytest.raises(UsageError, match="SLACKLINE_AS: slackline serves groups of gloo, not of"):
        serves({"SLACKLINE_AS": "nccl"})


VALUES = st.text(max_size=20) | st.lists(
    st.sampled_from(
        ("shm", "tcp", ",", "rank", "require", "64KiB", "1us", "9" * 30 + "h", "99999999h")
    ),
    max_size=4,
).map("".join)


@given(
    st.dictionaries(
        st.sampled_from(sorted(Environment.variables())),
        VALUES,
    )
)
def test_any_values_are_settings_or_a_usage_error(values: dict[str, str]) -> None:
    with contextlib.suppress(UsageError):
        Environment.read(values)


def test_the_cache_is_where_the_user_keeps_caches() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/var/cache/me"}) == Path("/var/cache/me/slackline")


@pytest.mark.parametrize("given", [{}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "here"}])
def test_without_a_cache_of_its_own_it_is_under_the_home(given: dict[str, str]) -> None:
    assert cache_folder(given) == Path.home() / ".cache" / "slackline"
