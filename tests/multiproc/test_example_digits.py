"""Tests that the digits example trains with results bit-identical to those of one process."""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
from example_ranks import EXAMPLES, asked, example, refusal

from slackline.reproduce import read_accuracy

EXAMPLE = EXAMPLES / "train_digits.py"
_SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]


def _run(*arguments: str, ranks: int, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*_SLACKLINE, "run", "--ranks", str(ranks), str(EXAMPLE), *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


def _json(*arguments: str, ranks: int) -> dict[str, Any]:
    """Return the JSON output of the command, run as a user would."""
    result = _run(*arguments, "--json", ranks=ranks)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def _forked(
    job: Any, store: Any, *arguments: str, ranks: int, **environment: str
) -> list[tuple[str, str]]:
    """Return the output and the exit message of each rank."""
    settings = asked(store, EXAMPLE.name, *arguments) | environment
    found: list[tuple[str, str]] = job(ranks, example, bare=True, environment=settings)
    return found


def _output(job: Any, store: Any, *arguments: str, ranks: int, **environment: str) -> str:
    """Return rank 0's output of three epochs of training, with the bits of the losses."""
    found = _forked(job, store, *arguments, "--bits", "--epochs", "3", ranks=ranks, **environment)
    assert [message for _, message in found] == [""] * ranks
    return found[0][0]


def _bits(output: str) -> list[str]:
    prefix = "PCCO over slackline: "
    lines = output.splitlines()
    return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]


def _example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_digits", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _reference(ranks: int, epochs: int) -> list[str]:
    """Return the results of a single process that adds the ranks' gradients in rank order."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    example = _example()
    digits, model = example.Digits(128, seed=0), example.resnet(seed=0)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, fused=True)
    lines = []
    for epoch in range(epochs):
        for shares in zip(*(digits.epoch(epoch, r, ranks) for r in range(ranks)), strict=True):
            losses = [functional.cross_entropy(model(x), y) for x, y in shares]
            gradients = [torch.autograd.grad(loss, parameters) for loss in losses]
            for parameter, first, *others in zip(parameters, *gradients, strict=True):
                parameter.grad = first
                for other in others:
                    parameter.grad = parameter.grad + other
                parameter.grad /= ranks
            optimizer.step()
            lines.append(f"step {len(lines)} loss {losses[0].item().hex()}")
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    return [*lines, f"parameters {found.hexdigest()[:16]}"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ddp_over_gloo_alone_needs_no_engine(job, store) -> None:
    asked_for = ("--backend", "gloo", "--method", "ddp", "--epochs", "3", "--json")
    found = json.loads(_forked(job, store, *asked_for, ranks=2)[0][0])
    assert [result["name"] for result in found["results"]] == ["DDP over gloo"]
    assert found["settings"]["ranks"] == 2


@pytest.mark.timeout(180)
def test_four_ranks_in_rank_order_train_what_one_process_trains(job, store) -> None:
    expected = _reference(ranks=4, epochs=3)
    assert len(expected) == 3 * 11 + 1
    both_ways = ("--compare", "slackline", "--json")
    output = _output(job, store, *both_ways, ranks=4, SLACKLINE_ORDER="rank")
    assert _bits(output) == expected
    found = read_accuracy(output[output.index("\n{") :], EXAMPLE.name)
    assert (found.ranks, found.epochs, found.unchanged) == (4, 3, True)
    names = [each.name for each in found.networks]
    assert names == ["PCCO over slackline", "DDP over slackline"]
    digests = {f"parameters {each.parameters}" for each in found.networks}
    assert digests == {expected[-1]}


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_the_same_seed_gives_the_same_bits_and_another_one_others(job, store) -> None:
    first = _bits(_output(job, store, ranks=4))
    assert len(first) == 3 * 11 + 1
    assert _bits(_output(job, store, ranks=4)) == first
    assert _bits(_output(job, store, "--seed", "1", ranks=4)) != first


@pytest.mark.slow
@pytest.mark.timeout(360)
def test_the_command_for_accuracy_trains_to_the_end_both_ways() -> None:
    result = subprocess.run(
        [*_SLACKLINE, "reproduce", "accuracy", str(EXAMPLE), "--json"],
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["ranks"], found["epochs"], found["unchanged"]) == (4, 15, True)
    pcco, ddp = found["networks"]
    assert pcco["parameters"] == ddp["parameters"]
    assert pcco["accuracy"] == ddp["accuracy"] > 0.97


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_both_contestants_learn_the_digits_in_one_run() -> None:
    found = _json("--compare", "gloo", "--epochs", "15", ranks=4)
    assert [result["name"] for result in found["results"]] == [
        "PCCO over slackline",
        "DDP over gloo",
    ]
    for result in found["results"]:
        assert result["accuracy"] > 0.97
        for name in ("step_ms", "exposed_ms", "blocked_ms"):
            times = result[name]
            assert times["p10"] <= times["median"] <= times["p90"]


@pytest.mark.parametrize(
    ("count", "below"), [(2, 0), (5, 0), (6, 0), (9, 1), (11, 1), (15, 3), (20, 5), (41, 13)]
)
def test_bounds_of_a_median_are_those_of_the_sign_test(count: int, below: int) -> None:
    values = [float(7 * k % count) for k in range(count)]
    assert _example().interval(values) == (below, count - 1 - below)


def test_a_ratio_compares_rounds_that_follow_each_other() -> None:
    example = _example()
    loads = [1.0, 3.0, 2.0, 5.0, 1.5, 4.0, 2.5]
    found = example.ratio([10 * load for load in loads], [12 * load for load in loads])
    assert found == {name: pytest.approx(1.2) for name in ("median", "low", "high")}
    told = example.ratios(
        [
            {"name": "PCCO", "ratio": {}},
            {"name": "A", "ratio": {"median": 1.2, "low": 1.1, "high": 1.3}},
            {"name": "B", "ratio": {"median": 0.98, "low": 0.96, "high": 1.01}},
        ]
    )
    assert told == (
        "PCCO takes a step 1.20x as fast as A (1.10 to 1.30), "
        "0.98x as fast as B (0.96 to 1.01: equal within the noise)"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compar", "gloo"], "unrecognized arguments: --compar gloo"),
        pytest.param(
            ["--epochs", "2"],
            "--epochs must be at least 3, not 2: the first warms up",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--batch", "0"],
            "--batch must be between 1 and 1437, not 0",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_mistake_in_the_arguments_is_code_2(job, store, arguments, message) -> None:
    settings = asked(store, EXAMPLE.name, *arguments)
    ((code, errors),) = job(1, refusal, bare=True, environment=settings)
    assert code == 2
    assert errors.count(message) == 1
    assert "Traceback" not in errors


def test_a_batch_that_cannot_be_dealt_out_evenly_is_refused(job, store) -> None:
    asked_for = ("--backend", "gloo", "--method", "ddp", "--batch", "127")
    message = "--batch must be a multiple of the 2 ranks, not 127"
    assert _forked(job, store, *asked_for, ranks=2) == [["", message]] * 2
