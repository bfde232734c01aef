"""Series of iterations: changing delays, plans made anew, a lag, traces, and runs that differ."""

import statistics
from pathlib import Path

import pytest

from slackline.errors import UsageError
from slackline.sim import Figures, read_experiment
from slackline.sim.experiment._delays import Drawn

MS = 10**9
SHAPE = """
stages = 2
microbatches = 1
forward = "10ms"
backward_input = "10ms"
backward_weight = "10ms"
"""
RUNTIME = '[[iteration.runtime]]\nname = "one"\nschedule = "1f1b"\n'
DRAWN = """
[[iteration.network]]
name = "all"
links = [0]
drawn = { normal = ["30ms", "10ms"], lasts = ["5ms", "10ms"] }
"""


def figures(text: str, run: int = 0, folder: Path | None = None) -> Figures:
    (case,) = read_experiment(text, "a.toml", run=run, folder=folder).cases
    return case.simulate()


def iterations_ms(text: str, folder: Path | None = None) -> list[float]:
    return [each / MS for each in figures(text, folder=folder)["iterations_ps"]]


def test_the_iterations_after_the_warm_up_are_averaged() -> None:
    network = '[[iteration.network]]\nname = "a"\nlinks = [0]\ndelay = "30ms"\nfrom = 2\n'
    text = f"[iteration]{SHAPE}iterations = 4\n{RUNTIME}{network}"
    assert iterations_ms(text) == [50, 50, 110, 110]
    found = figures(text.replace("iterations = 4", "iterations = 4\nwarmup = 1"))
    assert found["iterations_ps"] == [50 * MS, 110 * MS, 110 * MS]
    assert found["time_ps"] == 90 * MS


def test_delays_go_on_changing_from_one_iteration_to_the_next() -> None:
    text = f"[iteration]{SHAPE}iterations = 20\n{RUNTIME}{DRAWN}"
    found = iterations_ms(text)
    assert len(set(found)) > 15
    # Two messages of 30 ms on average: each meets the delay of its moment.
    assert statistics.mean(found) == pytest.approx(110, abs=6)
    assert found == iterations_ms(text)
    one = iterations_ms(text.replace("iterations = 20", "iterations = 1"))
    assert one == found[:1]


def test_delays_go_on_changing_in_an_iteration_of_seconds() -> None:
    drawn = 'drawn = { uniform = ["0ms", "90ms"], step = "10ms", lasts = "10ms", seed = 2 }'
    text = f"[iteration]{SHAPE}{RUNTIME}" + DRAWN.replace(DRAWN.splitlines()[-1], drawn)
    text = text.replace('"10ms"\nback', '"2s"\nback')
    delays = Drawn(
        kind="uniform",
        first_ps=0,
        second_ps=90 * MS,
        step_ps=10 * MS,
        lasts_ps=(10 * MS,) * 2,
        seed=2,
    ).changes(0, 9000 * MS)
    # F and B take 2 s, W 10 ms. The activation leaves at 2 s, the gradient after F1 and B1.
    there = delays[200][1]
    back = delays[(6000 * MS + there) // (10 * MS)][1]
    assert there != delays[50][1]
    assert figures(text)["time_ps"] == 8010 * MS + there + back


def test_each_run_draws_other_delays_and_run_0_those_of_the_seed() -> None:
    text = f"[iteration]{SHAPE}{RUNTIME}{DRAWN}"
    times = [figures(text, run)["time_ps"] for run in range(5)]
    assert len(set(times)) == 5
    assert times[0] == figures(text)["time_ps"]
    assert times[3] == figures(text, 3)["time_ps"]


WARY = """
[iteration]
stages = 4
microbatches = 12
forward = "10ms"
backward_input = "10ms"
backward_weight = "10ms"
iterations = 6
[[iteration.runtime]]
name = "adaptra"
schedule = "adaptra"
[[iteration.network]]
name = "late"
links = [2]
delay = "60ms"
from = 2
"""


def test_a_runtime_that_replans_knows_a_delay_after_its_lag() -> None:
    once = iterations_ms(WARY)
    at_once = iterations_ms(WARY.replace('"adaptra"\n[[', '"adaptra"\nreplans = true\n[['))
    lagging = WARY.replace('"adaptra"\n[[', '"adaptra"\nreplans = true\nlag = 2\n[[')
    later = iterations_ms(lagging)
    # A plan that is made once is for the delay. A lag of 2 leaves two iterations with the old plan.
    assert once == [400, 400, 450, 450, 450, 450]
    assert at_once == [390, 390, 450, 450, 450, 450]
    assert later == [390, 390, 800, 800, 450, 450]


def test_a_trace_by_iterations_sets_the_delays_of_all_links(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_text("# a comment\n1;0_1;0.03\n3;0_1;0.00\n")
    network = '[[iteration.network]]\nname = "a"\ntrace = "a.trace"\n'
    text = f"[iteration]{SHAPE}iterations = 5\n{RUNTIME}{network}"
    assert iterations_ms(text, tmp_path) == [50, 110, 110, 50, 50]


def test_a_trace_by_seconds_changes_delays_within_an_iteration(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_text("0.025;0_1;0.03\n0.2;0_1;0.0\n")
    network = '[[iteration.network]]\nname = "a"\ntrace = "a.trace"\n'
    text = f"[iteration]{SHAPE}iterations = 3\n{RUNTIME}{network}"
    # The activation leaves at 10 ms without a delay, the gradient at 30 ms with one. Of the second
    # iteration, from 80 ms on, both are late; of the third, from 190 ms on, only the activation,
    # which leaves at 200 ms, would be, but the delay ends at that moment.
    assert iterations_ms(text, tmp_path) == [80, 110, 50]


JOB = f"""
[job]
iterations = 10
{SHAPE}
[[job.runtime]]
name = "one"
schedule = "1f1b"
"""


def test_a_job_has_the_phases_and_the_crash_of_a_trace(tmp_path: Path) -> None:
    (tmp_path / "a.trace").write_text("2;0_1;0.03\n5;0_1;0.00\n8;;inf\n")
    text = JOB.replace("[job]", '[job]\ntrace = "a.trace"')
    text += 'restart = "1s"\n'
    found = figures(text, folder=tmp_path)
    assert found["time_ps"] == (7 * 50 + 3 * 110 + 1000) * MS
    assert found["phase_1_iteration_ps"] == 110 * MS


def test_a_phase_of_a_job_has_other_delays_in_each_iteration() -> None:
    phase = "[[job.phase]]\nfrom = 0\nlasts = 10\nlinks = [0]\n"
    text = f"{JOB}{phase}" + 'drawn = { normal = ["30ms", "10ms"], lasts = ["5ms", "10ms"] }\n'
    found = figures(text)
    first = figures(text.replace("iterations = 10", "iterations = 1").replace("= 10", "= 1"))
    assert found["phases_ps"][1] != 10 * first["phases_ps"][1]
    assert found["time_ps"] / 10 / MS == pytest.approx(110, abs=10)


def test_a_job_that_replans_adapts_after_its_lag() -> None:
    text = WARY.replace("[iteration]", "[job]").replace("iteration.", "job.")
    text = text.replace("job.network", "job.phase").replace('name = "late"\n', "")
    text = text.replace("from = 2", "from = 2\nlasts = 3").replace("iterations = 6", "iterations=6")
    late = text.replace('"adaptra"\n[[', '"adaptra"\nreplans = true\nlag = 2\n[[')
    assert figures(text)["time_ps"] == (3 * 390 + 3 * 450) * MS
    # Two iterations with the old plan, one with the new one, and one more of it on healthy links.
    assert figures(late)["phases_ps"] == [2 * 390 * MS, (800 + 800 + 450) * MS, 400 * MS]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("1;0_2;0.03\n", 'line 1: must be "time;links;delays" as in "340;2_3,6_7;0.05", not '),
        ("1;0_1;-0.03\n", 'line 1: must be "time;links;delays" as in "340;2_3,6_7;0.05", not '),
        ("1;0_1\n", 'line 1: must be "time;links;delays" as in "340;2_3,6_7;0.05", not '),
        ("2;0_1;0.03\n1;0_1;0.03\n", "the times of a trace must rise, one line each"),
        ("", "the times of a trace must rise, one line each"),
        (
            "1;0_1;0.03\n1.5;0_1;0.03\n",
            "times are either iterations (340) or seconds (1.25), not both",
        ),
    ],
)
def test_a_wrong_line_of_a_trace_is_named(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "a.trace").write_text(lines)
    network = '[[iteration.network]]\nname = "a"\ntrace = "a.trace"\n'
    with pytest.raises(UsageError) as raised:
        read_experiment(f"[iteration]{SHAPE}{RUNTIME}{network}", "a.toml", folder=tmp_path)
    assert said in str(raised.value)
    assert str(raised.value).startswith("a.trace")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"[iteration]{SHAPE}iterations = 2\nwarmup = 2\n{RUNTIME}{DRAWN}",
            "a.toml: [iteration]: warmup must be below iterations, 2, not 2",
        ),
        (
            f"[iteration]{SHAPE}{RUNTIME}lag = 1\n{DRAWN}",
            "a.toml: [iteration.runtime 0]: lag = 1 needs replans = true: other plans are made "
            "once",
        ),
        (
            f'[iteration]{SHAPE}{RUNTIME}replans = true\nknows = "times"\n{DRAWN}',
            'a.toml: [iteration.runtime 0]: replans needs knows = "delays", not "times"',
        ),
        (
            f'[iteration]{SHAPE}{RUNTIME}[[iteration.network]]\nname = "a"\ntrace = "a.trace"\n',
            "there is no folder with a.trace: the experiment is no file",
        ),
    ],
)
def test_a_mistake_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_experiment(text, "a.toml")
    assert str(raised.value) == said
