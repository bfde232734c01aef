"""Experiments whose messages are delegated: the keys of their tables, and a job with a crash."""

import pytest

from slackline.errors import UsageError
from slackline.sim import read_experiment

MS = 10**9
SHAPE = """
stages = 2
microbatches = 1
forward = "10ms"
backward_input = "10ms"
backward_weight = "10ms"
"""
RUNTIME = '[[iteration.runtime]]\nname = "one"\nschedule = "1f1b"\nsends = "delegated"\n'
NETWORK = '[[iteration.network]]\nname = "link"\nlinks = [0]\ndelay = "30ms"\n'
RATES = """
[iteration.delegation]
copy_bytes_per_second = "10GB"
send_bytes_per_second = "5GB"
"""
MODEL = """
[iteration.model]
microbatch = 1
sequence = 1000
hidden = 5000
type = "float16"
"""


def times(text: str) -> dict[str, float]:
    cases = read_experiment(text, "a.toml").cases
    return {case.name: case.simulate()["time_ps"] / MS for case in cases}


def test_the_size_of_a_message_is_given_or_follows_from_the_model() -> None:
    # 50 ms of computations, and two messages of 10 MB: 1 ms, 2 ms, 30 ms and 1 ms.
    wanted = {"one, link 30ms": 50 + 2 * (1 + 2 + 30 + 1)}
    assert times(f"[iteration]{SHAPE}{MODEL}{RATES}{RUNTIME}{NETWORK}") == wanted
    given = f'[iteration]{SHAPE}message = "10MB"\n{RATES}{RUNTIME}{NETWORK}'
    assert times(given) == wanted
    wide = MODEL.replace("float16", "float32")
    assert times(f"[iteration]{SHAPE}{wide}{RATES}{RUNTIME}{NETWORK}") == {
        "one, link 30ms": 50 + 2 * (2 + 4 + 30 + 2)
    }
    assert times(f"[iteration]{SHAPE}{RATES}{RUNTIME}{NETWORK}") == {"one, link 30ms": 110}


def test_every_key_of_the_delegation_has_its_effect() -> None:
    message = f'[iteration]{SHAPE}message = "10MB"\n'
    for keys, wanted in (
        ('copy = "3ms"', 110 + 2 * 6),
        ('handling = "3ms"', 110 + 2 * 3),
        ('nic = "40Gbit"', 110 + 2 * 2),
        ('nic = "40Gbit"\nranks_alike = 4', 110 + 2 * 8),
        ('nic = "40Gbit"\nhosts = [0, 0]', 110),
        ('memory_bytes_per_second = "10GB"', 110 + 2 * 3),
        ('send_bytes_per_second = "5GB"\ncores = 1\nranks_alike = 2', 110 + 2 * 4),
    ):
        text = f"{message}[iteration.delegation]\n{keys}\n{RUNTIME}{NETWORK}"
        assert times(text) == {"one, link 30ms": wanted}, keys


def test_a_network_may_have_its_own_number_of_delegates() -> None:
    shape = SHAPE.replace("microbatches = 1", "microbatches = 3")
    held = "[iteration.delegation]\nholds_delay = true\n"
    runtime = RUNTIME.replace("1f1b", "gpipe") + "full_backward = true\n"
    text = f"[iteration]{shape}{held}{runtime}{NETWORK}"
    more = text + NETWORK.replace('"link"', '"three"') + "delegates = 3\n"
    assert times(more) == {"one, link 30ms": 240, "one, three 30ms": 180}


def test_a_job_delegates_while_a_link_is_slow_and_after_a_crash() -> None:
    text = f"""
        [job]
        iterations = 10
        crash = 8
        message = "10MB"
        {SHAPE}
        [job.delegation]
        send_bytes_per_second = "5GB"
        [[job.runtime]]
        name = "survives"
        schedule = "1f1b"
        sends = "delegated"
        [[job.phase]]
        from = 2
        lasts = 3
        links = [0]
        delay = "30ms"
    """
    (case,) = read_experiment(text, "a.toml").cases
    figures = case.simulate()
    assert (figures["healthy_ps"], figures["after_crash_ps"]) == (50 * MS, 54 * MS)
    assert figures["time_ps"] == (5 * 50 + 3 * 114 + 2 * 54) * MS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f'[iteration]{SHAPE}message = "1MB"\n{MODEL}{RUNTIME}{NETWORK}',
            "a.toml: [iteration]: message and [….model] exclude each other: give one of them",
        ),
        (
            f"[iteration]{SHAPE}[iteration.delegation]\ndelegates = 0\n{RUNTIME}{NETWORK}",
            "a.toml: [iteration.delegation]: delegates must be a positive integer, not 0",
        ),
        (
            f"[iteration]{SHAPE}[iteration.delegation]\nhelpers = 2\n{RUNTIME}{NETWORK}",
            'a.toml: [iteration.delegation] does not take the key "helpers"; it takes delegates, '
            "copy_bytes_per_second, copy, send_bytes_per_second, handling, "
            "memory_bytes_per_second, nic, cores, ranks_alike, holds_delay, hosts",
        ),
        (
            f"[iteration]{SHAPE}[iteration.delegation]\nhosts = [0]\n{RUNTIME}{NETWORK}",
            "a.toml: [iteration.delegation]: hosts must have 2 hosts, not 1",
        ),
    ],
)
def test_a_mistake_names_the_table_and_the_key(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_experiment(text, "a.toml")
    assert str(raised.value) == said
