"""Tests of the results that a job prints, and of output of another form."""

import json

import pytest

from slackline.errors import UsageError
from slackline.reproduce import read_accuracy


def output(*networks: tuple[str, float, str]) -> str:
    results = [
        {"name": name, "accuracy": accuracy, "parameters": bits, "step_ms": {"median": 1.5}}
        for name, accuracy, bits in networks
    ]
    return json.dumps({"settings": {"ranks": 4, "epochs": 15, "seed": 0}, "results": results})


def test_equal_bits_leave_the_accuracy_unchanged() -> None:
    found = read_accuracy(output(("PCCO", 0.75, "a0"), ("DDP", 0.75, "a0")), "job.py")
    assert (found.ranks, found.epochs, found.unchanged) == (4, 15, True)
    named = [(each.name, each.accuracy) for each in found.networks]
    assert named == [("PCCO", 0.75), ("DDP", 0.75)]


@pytest.mark.parametrize("other", [("DDP", 0.75, "a1"), ("DDP", 0.5, "a0")])
def test_other_bits_or_another_accuracy_are_a_change(other: tuple[str, float, str]) -> None:
    assert not read_accuracy(output(("PCCO", 0.75, "a0"), other), "job.py").unchanged


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epoch 1", "JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
        ('{"results": []}', "KeyError: 'settings'"),
        ("[]", "TypeError: list indices must be integers or slices, not str"),
        (output(("PCCO", 0.75, "a0")).replace("0.75", '"high"'), "ValueError: could not convert "),
    ],
)
def test_output_of_another_form_is_refused_with_the_script_s_name(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_accuracy(text, "job.py")
    head = "job.py must print one JSON object with its results: "
    assert str(raised.value).startswith(head + message)


def test_a_job_must_train_in_two_ways() -> None:
    with pytest.raises(UsageError, match=r"^job.py must train by at least 2 methods, not 1$"):
        read_accuracy(output(("PCCO", 0.75, "a0")), "job.py")
