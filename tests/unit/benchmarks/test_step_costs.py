"""Tests of the costs of a training step: places in the code, samples, counts, and their table."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from benchmark_modules import modules_of

BACKWARD = "serve (/b/_harness/ranks.py:269);Trainer.backward (/b/training-step/contestants.py:67)"
SAMPLES = (
    f"{BACKWARD};_engine_run_backward (/v/torch/autograd/graph.py:979) 30",
    f"{BACKWARD};on (/s/slackline/overlap/reduction/_hooks.py:89);Arrivals.arrive "
    "(/s/slackline/overlap/reduction/_gradient_step.py:120) 6",
    f"{BACKWARD};PreparedBuffer.post (/s/slackline/nic/collectives/_operations.py:9) 4",
    "serve (/b/ranks.py:269);forward (/b/training-step/contestants.py:60);Pair.forward "
    "(/b/training-step/models.py:151) 10",
    "thread (0x7F);Network._follow (/s/slackline/nic/connect/_network.py:10) 50",
    "<module> (<string>:1);Trainer.step (/b/training-step/contestants.py:54) 1",
)


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    """Provide the benchmark's modules by name."""
    names = ("calls", "cost_places", "cost_results", "cost_tools")
    with modules_of("training-step", *names) as found:
        yield found


def test_a_file_belongs_to_the_first_place_that_fits(benchmark: ModuleType) -> None:
    places = {
        "/s/slackline/overlap/reduction/_gradient_reducer.py": "hooks and arrivals",
        "/s/slackline/overlap/reduction/_gradient_group.py": "groups of gradients",
        "/s/slackline/overlap/_partial_step.py": "deferred updates",
        "/s/slackline/overlap/_recorder.py": "other files of the overlap",
        "/s/slackline/nic/collectives/_transfer.py": "NIC engine",
        "/s/slackline/backend/_work.py": "backend",
        "/s/slackline/telemetry/_writer.py": "other files of slackline",
        "/v/torch/optim/adam.py": "optimizer",
        "/v/torch/nn/parallel/distributed.py": "DDP",
        "/v/torch/nn/modules/linear.py": "layers",
        "/v/torch/autograd/graph.py": "autograd",
        "/v/torch/autograd/grad_mode.py": "other files of torch",
        "/usr/lib/python3.11/contextlib.py": "other files",
    }
    assert {file: benchmark.cost_places.place_of(file) for file in places} == places


def test_every_file_of_a_place_in_slackline_exists(benchmark: ModuleType) -> None:
    root = Path(__file__).resolve().parents[3] / "src"
    files = [str(path) for path in root.rglob("*.py")]
    for place, parts in benchmark.cost_places.PLACES:
        for part in parts:
            if "torch" not in part and "training-step" not in part:
                assert any(part in file for file in files), place


def test_samples_are_shared_out_by_part_of_the_step_and_innermost_place(
    benchmark: ModuleType,
) -> None:
    shares = benchmark.cost_places.shares(SAMPLES, "training-step/contestants.py")
    assert shares == {
        ("backward", "autograd"): 0.6,
        ("backward", "hooks and arrivals"): 0.12,
        ("backward", "NIC engine"): 0.08,
        ("forward", "layers"): 0.2,
    }


def test_samples_without_a_step_are_refused(benchmark: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"^no sample is of a training step$"):
        benchmark.cost_places.shares([" 1"], "training-step/contestants.py")  # a stack of no frame
    with pytest.raises(ValueError, match=r"^no sample is of a training step$"):
        benchmark.cost_places.shares(SAMPLES[4:], "training-step/contestants.py")
    message = "^a line of samples must be a stack and a number, not 'Sampling process'$"
    with pytest.raises(ValueError, match=message):
        benchmark.cost_places.shares(["Sampling process"], "training-step/contestants.py")


def turn(backward: float) -> dict[str, float]:
    return {
        "forward": 10.0,
        "backward": backward,
        "update": 5.0,
        "clear": 1.0,
        "other threads": 2.0,
    }


def test_a_row_has_medians_over_rounds_of_means_over_ranks(benchmark: ModuleType) -> None:
    costs = benchmark.cost_results.Costs()
    for backward in (39.0, 40.0, 90.0):
        costs.record("PCCO", [turn(backward - 4), turn(backward + 4)])
    costs.record("alone", [turn(20.0)])
    costs.calls["PCCO"] = [{"layers": 3.0, "DDP": 1.0}, {"layers": 4.0}]
    costs.system_calls["PCCO"] = 7.5
    costs.choices["PCCO"] = "one group"
    costs.shares["PCCO"] = benchmark.cost_places.shares(SAMPLES, "training-step/contestants.py")
    costs.skip("samples", "py-spy is not installed")
    pcco, alone = costs.rows()
    assert pcco.as_json() == {
        "contestant": "PCCO",
        "choice": "one group",
        "forward_us": 10.0,
        "backward_us": 40.0,
        "update_us": 5.0,
        "clear_us": 1.0,
        "other threads_us": 2.0,
        "step_us": 58.0,
        "above_alone_us": 0.05,
        "python_calls of DDP": 0.5,
        "python_calls of layers": 3.5,
        "python_calls": 4.0,
        "system_calls": 7.5,
        "backward in autograd_us": 30.0,
        "backward in hooks and arrivals_us": 6.0,
        "backward in NIC engine_us": 4.0,
        "forward in layers_us": 10.0,
    }
    assert alone.values["step_us"] == 38.0
    parts, places = costs.tables()
    assert [list(column.cells) for column in parts.columns][-1] == ["8", "-"]
    assert list(places.columns[1].cells) == [
        *("layers", "hooks and arrivals", "NIC engine", "autograd")
    ]
    assert costs.notes() == ["PCCO: one group", "skipped: samples: py-spy is not installed"]


def test_calls_are_counted_by_the_label_of_their_file(benchmark: ModuleType) -> None:
    def leaf(_number: int) -> str:
        return os.fspath("path")

    labels = benchmark.calls.labelled_calls(
        lambda: list(map(leaf, range(5))), lambda file: file == __file__
    )
    assert labels == {True: 6}


def test_perf_counts_the_system_calls_of_other_processes(benchmark: ModuleType) -> None:
    program = (
        "import os, sys\n"
        "for _ in sys.stdin:\n"
        "    for _ in range(1000): os.getppid()\n"
        "    print('done', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def act() -> None:
            process.stdin.write("go\n")
            process.stdin.flush()
            process.stdout.readline()

        act()
        try:
            count = benchmark.cost_tools.system_calls([process.pid], act)
        except benchmark.cost_tools.ToolError as error:
            pytest.skip(str(error))
        finally:
            process.stdin.close()
    assert 1000 <= count < 1100


def test_a_count_is_read_from_the_words_of_perf(benchmark: ModuleType) -> None:
    words = "Events disabled\n1003,,raw_syscalls:sys_enter,9154871,100.00,109.560,K/sec\n"
    assert benchmark.cost_tools.counted(words) == 1003
    message = r"^perf did not count system calls: <not counted>,,raw_syscalls:sys_enter,0,0.00,,$"
    with pytest.raises(benchmark.cost_tools.ToolError, match=message):
        benchmark.cost_tools.counted("<not counted>,,raw_syscalls:sys_enter,0,0.00,,\n")


def test_a_missing_tool_is_named(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(benchmark.cost_tools.ToolError, match=r"^perf is not installed$"):
        benchmark.cost_tools.system_calls([os.getpid()], lambda: None)
    with pytest.raises(benchmark.cost_tools.ToolError, match=r"^py-spy is not installed$"):
        benchmark.cost_tools.samples(os.getpid(), 1, tmp_path / "samples", lambda: None)
