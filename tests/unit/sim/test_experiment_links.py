"""Experiments without hosts: a pipeline on links with given delays, a job, an aggregation node."""

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
RUNTIME = '[[iteration.runtime]]\nname = "one"\nschedule = "1f1b"\n'
NETWORK = '[[iteration.network]]\nname = "link"\nlinks = [0]\ndelay = ["0ms", "30ms"]\n'
ITERATION = f"[iteration]{SHAPE}{RUNTIME}{NETWORK}"
NODE = """
[node]
workers = 2
rate = "10Gbit"
payload = "1000B"
overhead = "250B"
message = "4000B"
"""


def times(text: str) -> dict[str, int]:
    return {case.name: case.simulate()["time_ps"] for case in read_experiment(text, "a").cases}


def test_each_runtime_is_simulated_with_each_delay() -> None:
    # F0 and F1, B1 and B0, then W0: 50 ms, and the delay once each way.
    assert times(ITERATION) == {"one, link 0ms": 50 * MS, "one, link 30ms": 110 * MS}
    read = read_experiment(ITERATION, "a.toml")
    assert (read.kind, read.fabric, str(read.faults)) == ("iteration", None, "")


def test_the_rest_of_an_iteration_and_of_a_degraded_one_are_added() -> None:
    text = ITERATION.replace(RUNTIME, f'{RUNTIME}rest = "5ms"\ndegraded = "7ms"\nlate = "1ms"\n')
    assert times(text) == {"one, link 0ms": 55 * MS, "one, link 30ms": 124 * MS}
    figures = read_experiment(text, "a.toml").cases[1].simulate()
    assert figures["pipeline_ps"] == 112 * MS


def test_gradients_of_other_links_may_be_late() -> None:
    none = ITERATION.replace(RUNTIME, f"{RUNTIME}late_gradients = {{ 0 = [] }}\n")
    assert times(none) == {"one, link 0ms": 50 * MS, "one, link 30ms": 80 * MS}
    both = ITERATION.replace(RUNTIME, f"{RUNTIME}late_gradients = {{ 0 = [0, 1] }}\n")
    both = both.replace("stages = 2", "stages = 3")
    # The delay is met by the activation of link 0 and by the gradients of both links.
    assert times(both) == {"one, link 0ms": 70 * MS, "one, link 30ms": 160 * MS}
    redrawn = 'drawn = { uniform = ["0ms", "1ms"], lasts = "1ms", seed = 3 }'
    late = {"none": none, "usual": ITERATION}
    found = {
        name: times(text.replace('delay = ["0ms", "30ms"]', redrawn))["one, link"]
        for name, text in late.items()
    }
    assert 50 * MS <= found["none"] < found["usual"] <= 52 * MS


def test_every_message_has_the_latency_and_that_of_a_slow_link_its_delay_too() -> None:
    text = ITERATION.replace("stages = 2", 'stages = 3\nlatency = "2ms"')
    # F0, F1, F2, B2, B1, B0 and W0 with a message before each but the first and the last.
    assert times(text) == {"one, link 0ms": 78 * MS, "one, link 30ms": 138 * MS}
    redrawn = 'drawn = { uniform = "0ms", lasts = "1ms" }'
    changed = text.replace('delay = ["0ms", "30ms"]', redrawn)
    assert times(changed) == {"one, link": 78 * MS}


def test_a_runtime_may_have_its_own_times() -> None:
    text = ITERATION.replace(RUNTIME, f'{RUNTIME}forward = ["10ms", "20ms"]\n')
    assert times(text) == {"one, link 0ms": 60 * MS, "one, link 30ms": 120 * MS}


@pytest.mark.parametrize(
    ("sends", "wanted_ms", "blocked_ms"),
    [("asynchronous", 180, 0), ("blocking", 300, 90), ("one-queue", 300, 90)],
)
def test_sends_block_as_the_runtime_says(sends: str, wanted_ms: int, blocked_ms: int) -> None:
    shape = SHAPE.replace("microbatches = 1", "microbatches = 3")
    network = NETWORK.replace('["0ms", "30ms"]', '"30ms"')
    runtime = RUNTIME.replace("1f1b", "gpipe") + f'sends = "{sends}"\nfull_backward = true\n'
    (case,) = read_experiment(f"[iteration]{shape}{runtime}{network}", "a.toml").cases
    figures = case.simulate()
    # Forwards reach stage 1 at 40, 50 and 60 ms, or with blocking sends at 40, 80 and 120. Its
    # backwards of 20 ms follow, and those of stage 0 when their messages have come.
    assert figures["time_ps"] == wanted_ms * MS
    assert figures["blocked_ps"] == (blocked_ms * MS, blocked_ms * MS)


def test_several_links_have_one_delay_or_one_each() -> None:
    shape = SHAPE.replace("stages = 2", "stages = 3")
    text = f"[iteration]{shape}{RUNTIME}"
    network = '[[iteration.network]]\nname = "both"\nlinks = [0, 1]\n'
    alike = times(f'{text}{network}delay = "10ms"\n')
    assert alike == {"one, both 10ms": 110 * MS}
    each = times(f'{text}{network}delay = [["10ms", "20ms"]]\n')
    assert each == {"one, both 10ms 20ms": 130 * MS}


def test_drawn_delays_follow_from_their_seed() -> None:
    redrawn = (
        '[[iteration.network]]\nname = "wild"\nlinks = [0]\ndrawn = '
        '{ uniform = ["0ms", "60ms"], step = "10ms", lasts = ["5ms", "10ms"], seed = 1 }\n'
    )
    text = f"[iteration]{SHAPE}{RUNTIME}{redrawn}"
    first = times(text)
    assert first == times(text)
    assert list(first) == ["one, wild"]
    assert first["one, wild"] % (10 * MS) == 0
    assert 50 * MS <= first["one, wild"] <= 170 * MS


JOB = f"""
[job]
iterations = 10
crash = 8
{SHAPE}
[[job.runtime]]
name = "restarts"
schedule = "1f1b"
rest = "5ms"
restart = "1s"
[[job.runtime]]
name = "survives"
schedule = "1f1b"
rest = "5ms"
degraded = "7ms"
[[job.phase]]
from = 2
lasts = 3
links = [0]
delay = "30ms"
"""


def test_a_job_is_the_sum_of_its_iterations_and_of_a_crash() -> None:
    # Seven iterations of 55 ms and three of 115.
    sums_ms = 7 * 55 + 3 * 115
    assert times(JOB) == {
        "restarts": (sums_ms + 1000) * MS,
        "survives": (sums_ms + 3 * 7 + 2 * 7) * MS,
    }
    figures = read_experiment(JOB, "a.toml").cases[1].simulate()
    assert figures["phases_ps"] == [2 * 55 * MS, 3 * 122 * MS, 5 * 55 * MS]
    assert (figures["healthy_ps"], figures["slowest_ps"]) == (55 * MS, 122 * MS)
    assert figures["phase_1_iteration_ps"] == 122 * MS


def test_a_job_without_a_crash_restarts_nothing() -> None:
    assert times(JOB.replace("crash = 8\n", ""))["restarts"] == (7 * 55 + 3 * 115) * MS


def test_a_node_has_a_case_for_each_message_onset_and_sender() -> None:
    text = NODE.replace('"4000B"', '["1000B", "4000B"]') + "onset = [1, 0]\n"
    read = read_experiment(text, "a.toml")
    assert [case.name for case in read.cases] == [
        "1000B, onset 1",
        "1000B, onset 0",
        "4000B, onset 1",
        "4000B, onset 0",
    ]
    figures = [case.simulate() for case in read.cases]
    assert [each["last_ps"] for each in figures] == [2 * 10**6, 2 * 10**6, 5 * 10**6, 8 * 10**6]
    assert figures[2]["bits_per_second"] == 4000 * 8 * 10**12 // (5 * 10**6)
    senders = '[[node.senders]]\nname = "slow"\npattern = "paced"\nrate = "1Gbit"\n'
    (case,) = read_experiment(NODE + senders, "a.toml").cases
    assert case.name == "4000B, onset 1, slow"
    assert case.simulate()["last_ps"] > 30 * 10**6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            ITERATION.replace(RUNTIME, RUNTIME + "late_gradients = { 5 = [] }\n"),
            'a.toml: [iteration.runtime 0.late_gradients] does not take the key "5"; it takes 0',
        ),
        (
            ITERATION.replace(RUNTIME, RUNTIME + "late_gradients = { 0 = [1] }\n"),
            "a.toml: [iteration.runtime 0.late_gradients]: there is no link 1: 2 ranks have 1 link",
        ),
        (
            ITERATION.replace(RUNTIME, RUNTIME + "late_gradients = { 0 = 0 }\n"),
            "a.toml: [iteration.runtime 0.late_gradients] 0: must be an array of links, not 0",
        ),
        (
            f"faults = []\n{ITERATION}",
            'a.toml: the file does not take the key "faults"; it takes iteration',
        ),
        (
            f"[iteration]{SHAPE}{NETWORK}",
            "a.toml: [iteration]: at least one runtime is needed: a table [[….runtime]]",
        ),
        (
            f"[iteration]{SHAPE}{RUNTIME}",
            "a.toml: [iteration]: at least one [[iteration.network]] is needed",
        ),
        (
            ITERATION + RUNTIME,
            'a.toml: [iteration.runtime 1]: there are two runtimes of the name "one"',
        ),
        (
            ITERATION.replace("[0]", "[1]"),
            'a.toml: [iteration.network 0]: links of "one": there is no link 1: 2 ranks have 1 '
            "link",
        ),
        (
            ITERATION.replace("[0]", "[0, 0]"),
            "a.toml: [iteration.network 0]: links must differ, not [0, 0]",
        ),
        (
            ITERATION.replace('"30ms"]', '["1ms", "2ms"]]'),
            "a.toml: [iteration.network 0]: delay must have one value or 1 for the links, not 2",
        ),
        (
            ITERATION.replace('"30ms"]', '"30"]'),
            "a.toml: [iteration.network 0] delay: a duration must be a number and one of ns, us, "
            "ms, s, min, h, not '30'",
        ),
        (
            ITERATION.replace("1f1b", "2f2b"),
            "a.toml: [iteration.runtime 0] schedule: must be one of auto, ready, slack, adaptra, "
            "gpipe, 1f1b, zb-h1, zb-h2, zero-bubble, interleaved, zb-v, dualpipe-v, not '2f2b'",
        ),
        (
            ITERATION.replace("1f1b", "zb-v").replace("stages = 2", "stages = 3"),
            "a.toml: [iteration.runtime 0]: 3 stages cannot be divided into 2 for each rank",
        ),
        (
            ITERATION.replace(RUNTIME, f"{RUNTIME}cap = 0\n"),
            "a.toml: [iteration.runtime 0]: stage 0, F0: needs 1 activation, but the cap is 0",
        ),
        (
            ITERATION.replace("stages = 2", "stages = 0"),
            "a.toml: [iteration.runtime 0]: stages must be a positive integer, not 0",
        ),
        (
            JOB.replace("crash = 8", "crash = 10"),
            "a.toml: [job]: crash must be an iteration from 0 to 9, not 10",
        ),
        (
            JOB.replace("lasts = 3", "lasts = 9"),
            "a.toml: [job.phase 0]: the phase of iterations 2 to 11 must be within 0 to 10, after "
            "the phase before it",
        ),
        (
            JOB.replace('"30ms"', '["30ms", "40ms"]'),
            "a.toml: [job.phase 0]: a phase must have one delay, not 2",
        ),
        (NODE.replace("= 2", "= 0"), "a.toml: [node]: workers must be a positive integer, not 0"),
        (
            NODE.replace("4000B", "0B"),
            "a.toml: [node] message: a message must have at least one byte, not 0",
        ),
        (
            NODE + '[[node.senders]]\nname = "a"\npattern = "paced"\nrate = "20Gbit"\n',
            "a.toml: [node.senders 0]: senders must not be faster than their wires: 20000000000 "
            "bit/s are more than 10000000000",
        ),
        (
            NODE + '[[node.senders]]\nname = "a"\npattern = "slow"\n',
            "a.toml: [node.senders 0] pattern: must be one of uniform, paced, bursty, not 'slow'",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_experiment(text, "a.toml")
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("drawn", "said"),
    [
        ('uniform = ["0ms", "6ms"], step = "0ms", lasts = "1ms"', "step must be positive"),
        (
            'uniform = ["0ms", "6ms"], lasts = ["3ms", "2ms"]',
            "lasts must have two times of at least 1ms, the shorter one first",
        ),
        ('uniform = ["6ms", "0ms"], lasts = "1ms"', "uniform must have the smaller delay first"),
        ('lasts = "1ms"', "give either normal or uniform delays, not neither"),
        (
            'normal = "1ms", uniform = "1ms", lasts = "1ms"',
            "give either normal or uniform delays, not normal and uniform",
        ),
    ],
)
def test_drawn_delays_that_do_not_fit_are_refused(drawn: str, said: str) -> None:
    network = f'[[iteration.network]]\nname = "a"\nlinks = [0]\ndrawn = {{ {drawn} }}\n'
    with pytest.raises(UsageError) as raised:
        read_experiment(f"[iteration]{SHAPE}{RUNTIME}{network}", "a.toml")
    assert str(raised.value) == f"a.toml: [iteration.network 0.drawn]: {said}"
