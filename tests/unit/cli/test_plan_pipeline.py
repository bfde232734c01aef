import json
from pathlib import Path
from typing import Any

import pytest

from slackline.cli.plan import run
from slackline.errors import UsageError
from slackline.sim import read_experiment

SMALL = ["pipeline", "--stages", "4", "--microbatches", "12", "--times", "10ms,10ms,10ms"]
SCENARIO = {
    "stages": 3,
    "microbatches": 6,
    "forward_ms": [10, 12, 9.5],
    "backward_input_ms": [11, 10, 10],
    "backward_weight_ms": [8, 9, 10],
    "link_forward_delay_ms": [0, 30],
    "link_backward_delay_ms": [5, 0],
    "activation_cap": [4, 4, 3],
    "freed_at_backward": 0.5,
}


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def scenario(tmp_path: Path, **change: object) -> str:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps(SCENARIO | change))
    return str(path)


@pytest.mark.parametrize(("delay", "makespan"), [("0ms", 390), ("10ms", 400), ("20ms", 440)])
def test_the_published_times_come_out(
    capsys: pytest.CaptureFixture[str], delay: str, makespan: int
) -> None:
    found = answer(capsys, *SMALL, "--schedule", "zero-bubble", "--link-delay", f"0:{delay}")
    assert found["makespan_ms"] == makespan


def test_json_has_figures_and_orders(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SMALL, "--schedule", "zb-h1", "--memory", "4")
    assert {key: found[key] for key in found if key != "orders"} == {
        "schedule": "zb-h1",
        "sends": "asynchronous",
        "stages": 4,
        "ranks": 4,
        "microbatches": 12,
        "makespan_ms": 390.0,
        "lower_bound_ms": 390.0,
        "bubble_share": pytest.approx(30 / 390),
        "peak_activations": [4, 4, 4, 4],
    }
    assert [order[:6] for order in found["orders"]] == [
        ["F0", "F1", "F2", "F3", "B0", "W0"],
        ["F0", "F1", "F2", "B0", "F3", "B1"],
        ["F0", "F1", "B0", "F2", "B1", "F3"],
        ["F0", "B0", "F1", "B1", "F2", "B2"],
    ]


def test_auto_stays_under_the_cap_and_beats_1f1b(capsys: pytest.CaptureFixture[str]) -> None:
    options = [*SMALL, "--link-delay", "2:60ms", "--memory", "8"]
    found = answer(capsys, *options)
    assert found["schedule"] == "auto"
    assert max(found["peak_activations"]) <= 8
    assert found["lower_bound_ms"] <= found["makespan_ms"]
    other = answer(capsys, *options, "--schedule", "1f1b")
    assert found["makespan_ms"] * 2 < other["makespan_ms"]
    assert answer(capsys, *options, "--schedule", "ready")["makespan_ms"] == 550


def test_a_scenario_file_says_everything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = answer(capsys, "pipeline", "--scenario", scenario(tmp_path))
    assert all(peak <= cap for peak, cap in zip(found["peak_activations"], [4, 4, 3], strict=True))
    for order in found["orders"]:
        assert sorted(order) == sorted(f"{kind}{m}" for kind in "FBW" for m in range(6))


def test_the_example_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "examples" / "slow_link.json"
    found = answer(capsys, "pipeline", "--scenario", str(example))
    assert max(found["peak_activations"]) <= 8
    assert found["makespan_ms"] <= 1.1 * found["lower_bound_ms"]


def test_the_plan_is_printed_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["pipeline", "--stages", "2", "--microbatches", "2", "--times", "10,10,5"]
    assert run([*call, "--schedule", "1f1b", "--link-delay", "0:3ms/1ms"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1f1b, 2 stages, 2 microbatches",
        " ms  rank 0  rank 1",
        "  0  F0",
        " 10  F1",
        " 13  |       F0",
        " 23          B0",
        " 33          W0",
        " 34  B0      |",
        " 38  |       F1",
        " 44  W0      |",
        " 48  |       B1",
        " 58          W1",
        " 59  B1      |",
        " 69  W1",
        "",
        "makespan: 74 ms with asynchronous sends",
        "lower bound: 69 ms; the plan is 7.25% above it",
        "bubble share: 32.4%",
        "peak activations: 2, 1",
        "link 0: slack 1 absorbs 0 s; its delay of 2 ms is more than that",
    ]


def test_all_schedules_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *SMALL, "--memory", "4", "--compare", "--effort", "0.1")["schedules"]
    by_name = {row["schedule"]: row for row in found}
    assert found[0]["makespan_ms"] == by_name["auto"]["makespan_ms"] == 390
    assert by_name["zb-h1"]["fits"]
    assert not by_name["zb-h2"]["fits"]
    assert by_name["zb-h2"]["reason"] == "stage 0, F4: needs 5 activations, but the cap is 4"
    assert by_name["zb-v"]["ranks"] == 2
    assert run([*SMALL, "--memory", "4", "--compare", "--effort", "0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["schedule", "ranks", "makespan", *lines[0].split()[3:]]
    assert len(lines) == 1 + len(found)


def test_more_memory_is_never_slower(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--link-delay", "2:60ms", "--memory-curve", "--effort", "0.05"]
    found = answer(capsys, *SMALL, *options)["memory_curve"]
    times = [row["makespan_ms"] for row in found]
    assert [row["activation_cap"] for row in found] == list(range(1, 13))
    assert times == sorted(times, reverse=True)
    assert times[0] > 2 * times[-1]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("plan.svg", b"<?xml"),
        pytest.param("plan.png", b"\x89PNG", marks=pytest.mark.slow),
    ],
)
def test_the_plan_is_drawn(tmp_path: Path, name: str, start: bytes) -> None:
    path = tmp_path / name
    assert run([*SMALL, "--schedule", "1f1b", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(start)


def test_a_picture_of_another_kind_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--plot must end in \.png or \.svg, not 'plan\.txt'$"):
        run([*SMALL, "--schedule", "1f1b", "--plot", "plan.txt"])


def test_a_plan_goes_out_and_comes_back_as_pytorchs_csv(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "mine.csv"
    first = answer(capsys, *SMALL, "--schedule", "zb-h2", "--write-csv", str(path))
    second = answer(capsys, *SMALL, "--csv", str(path))
    assert second["schedule"] == "mine"
    assert second["orders"] == first["orders"]


def test_memory_may_be_in_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--memory", "4GiB", "--activation", "1GiB", "--schedule", "ready"]
    assert max(answer(capsys, *SMALL, *options)["peak_activations"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pipeline"], "--stages is needed without --scenario"),
        (["pipeline", "--stages", "4"], "--microbatches is needed without --scenario"),
        ([*SMALL, "--times", "10ms"], "--times must be F,B,W like 10ms,10ms,10ms, not '10ms'"),
        (
            [*SMALL, "--link-delay", "60ms"],
            "--link-delay must be LINK:DELAY like 2:60ms, not '60ms'",
        ),
        ([*SMALL, "--link-delay", "3:60ms"], "there is no link 3: 4 ranks have 3 links"),
        ([*SMALL, "--memory", "many"], "--memory must be a number, not 'many'"),
        ([*SMALL, "--memory", "4GiB"], "--memory in bytes needs --activation"),
        ([*SMALL, "--memory", "0"], "stage 0, F0: needs 1 activation, but the cap is 0"),
        ([*SMALL, "--activation", "1GiB"], "--activation needs a --memory in bytes, such as 8GiB"),
        (
            [*SMALL, "--memory", "1,2"],
            "--memory must be one cap or one for each of 4 stages, not ['1', '2']",
        ),
        ([*SMALL, "--effort", "0"], "effort must be positive, not 0"),
        ([*SMALL, "--scenario", "x.json"], "--stages is set by the file of --scenario"),
        (
            ["pipeline", "--scenario", "nowhere.json"],
            "cannot read nowhere.json: No such file or directory",
        ),
        ([*SMALL, "--csv", "nowhere.csv"], "cannot read nowhere.csv: No such file or directory"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        run(arguments)
    assert str(error.value) == message


def test_an_unknown_schedule_and_one_that_does_not_fit_are_named() -> None:
    with pytest.raises(UsageError, match=r'^there is no schedule "2f2b"; schedules are auto, '):
        run([*SMALL, "--schedule", "2f2b"])
    with pytest.raises(UsageError) as error:
        run([*SMALL, "--schedule", "gpipe", "--memory", "8"])
    assert str(error.value).startswith(
        "gpipe, 4 stages, 12 microbatches: stage 0, F8: needs 9 activations, but the cap is 8"
    )


def test_a_csv_for_another_scenario_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("0F0,0B0\n1F0,1B0\n")
    with pytest.raises(UsageError) as error:
        run([*SMALL, "--csv", str(path)])
    assert str(error.value) == (
        "two, 2 stages, 1 microbatch: the plan has 2 stages, the scenario 4"
    )


@pytest.mark.parametrize(
    ("sends", "one_piece"), [("asynchronous", 1170), ("blocking", 1230), ("one-queue", 1870)]
)
def test_a_plan_is_timed_with_the_sends_that_simulate_has(
    sends: str,
    one_piece: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [*SMALL, "--link-delay", "2:60ms", "--sends", sends]
    found = answer(capsys, *given, "--schedule", "1f1b", "--full-backward")
    assert (found["makespan_ms"], found["sends"]) == (one_piece, sends)
    zero = answer(capsys, *given, "--schedule", "zero-bubble")
    text = f"""
        [iteration]
        stages = 4
        microbatches = 12
        forward = "10ms"
        backward_input = "10ms"
        backward_weight = "10ms"
        [[iteration.runtime]]
        name = "1f1b"
        schedule = "1f1b"
        full_backward = true
        sends = "{sends}"
        [[iteration.runtime]]
        name = "zero bubble"
        schedule = "zero-bubble"
        sends = "{sends}"
        [[iteration.network]]
        name = "last"
        links = [2]
        delay = "60ms"
    """
    times = [case.simulate()["time_ps"] / 1e9 for case in read_experiment(text, "a").cases]
    assert times == [one_piece, zero["makespan_ms"]]


def test_sends_are_compared_and_a_wrong_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    given = [*SMALL, "--link-delay", "2:60ms", "--effort", "0.1", "--compare"]
    free, held = (
        {row["schedule"]: row["makespan_ms"] for row in answer(capsys, *given, *way)["schedules"]}
        for way in ([], ["--sends", "blocking"])
    )
    assert held["1f1b"] > free["1f1b"]
    with pytest.raises(UsageError) as error:
        run([*SMALL, "--schedule", "1f1b", "--sends", "late"])
    assert str(error.value) == (
        '--sends must be one of asynchronous, blocking, one-queue, not "late"'
    )
    with pytest.raises(UsageError) as error:
        run([*SMALL, "--memory-curve", "--sends", "blocking"])
    assert str(error.value) == ("--memory-curve has asynchronous sends: leave out --sends blocking")


def test_a_delayed_link_joins_ranks_in_every_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["pipeline", "-s", "8", "-m", "8", "--times", "10,10,10", "--schedule", "interleaved"]
    healthy = answer(capsys, *given)["makespan_ms"]
    slow = answer(capsys, *given, "--link-delay", "2:30ms")["makespan_ms"]
    # The first microbatch crosses the link between ranks 2 and 3 twice on its way down.
    assert slow >= healthy + 2 * 30
    with pytest.raises(UsageError) as error:
        run([*given, "--link-delay", "6:30ms"])
    assert str(error.value) == "there is no link 6: 4 ranks have 4 links"


def test_stages_may_have_times_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["pipeline", "-s", "4", "-m", "12", "--schedule", "zero-bubble"]
    found = answer(capsys, *given, "--times", "8/9/10/9,10,5/6/6/6")
    assert found["makespan_ms"] == 329
    with pytest.raises(UsageError) as error:
        run([*given, "--times", "8/9,10,5"])
    assert str(error.value) == (
        "--times must have one time or one for each of 4 stages, such as 8/9/10/9, not '8/9'"
    )


def test_a_forward_may_be_computed_again(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["pipeline", "-s", "1", "-m", "2", "--schedule", "1f1b", "--times", "10,10,10"]
    assert answer(capsys, *given)["makespan_ms"] == 60
    assert answer(capsys, *given, "--recompute", "0.5")["makespan_ms"] == 70
    with pytest.raises(UsageError) as error:
        run([*given, "--recompute", "2"])
    assert str(error.value) == "--recompute must be a share from 0 to 1, not 2"
