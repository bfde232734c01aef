"""Tests that outputs of every kind are detached, merged and sent, or refused with a way out."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field, fields

import pytest
import torch
from torch.distributed.pipelining.microbatch import TensorChunkSpec, sum_reducer
from torch.utils._pytree import register_pytree_node

from slackline.errors import UsageError
from slackline.pipeline._outputs import detached, merge, sendable

Pair = namedtuple("Pair", "logits hidden")


@dataclass
class Answer:
    logits: torch.Tensor
    cache: object = None


@dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor
    extra: str = field(init=False, default="unchanged")


class Registered(OrderedDict):
    """A class like the outputs of transformers: a dict that torch's pytrees know."""


register_pytree_node(
    Registered,
    lambda value: (list(value.values()), list(value)),
    lambda values, names: Registered(zip(names, values, strict=True)),
)


class Unregistered(dict):
    pass


class Opaque:
    def __init__(self, logits):
        self.logits = logits


def rows(microbatch):
    return torch.full((2, 3), float(microbatch), requires_grad=True) * 1


def whole():
    return torch.cat([torch.full((2, 3), float(microbatch)) for microbatch in range(3)])


def scalars():
    return torch.tensor([0.0, 1.0, 2.0])


KINDS = {
    "tensor": (rows, whole),
    "without dimensions": (lambda m: torch.tensor(float(m), requires_grad=True) * 1, scalars),
    "tuple": (lambda m: (rows(m), rows(m)), lambda: (whole(), whole())),
    "list": (lambda m: [rows(m)], lambda: [whole()]),
    "nested": (
        lambda m: (rows(m), [{"a": rows(m)}, None]),
        lambda: (whole(), [{"a": whole()}, None]),
    ),
    "nothing": (lambda m: None, lambda: None),
    "number": (lambda m: 3, lambda: 3),
    "numbers and words": (lambda m: {"y": rows(m), "n": 3}, lambda: {"y": whole(), "n": 3}),
    "named tuple": (lambda m: Pair(rows(m), 1), lambda: Pair(whole(), 1)),
    "dataclass": (lambda m: Answer(rows(m), [rows(m)]), lambda: Answer(whole(), [whole()])),
    "frozen dataclass": (lambda m: Frozen(rows(m)), lambda: Frozen(whole())),
    "registered class": (lambda m: Registered(y=rows(m)), lambda: Registered(y=whole())),
    "subclass of dict": (lambda m: Unregistered(y=rows(m)), lambda: {"y": whole()}),
}


def parts_of(value):
    if isinstance(value, Answer | Frozen):
        return [type(value), *(parts_of(getattr(value, each.name)) for each in fields(value))]
    if isinstance(value, dict):
        return [type(value), *((name, parts_of(each)) for name, each in value.items())]
    if isinstance(value, tuple | list):
        return [type(value), *map(parts_of, value)]
    if isinstance(value, torch.Tensor):
        assert not value.requires_grad
        return value.tolist()
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_of_every_kind_are_detached_and_merged(kind):
    make, expected = KINDS[kind]
    outputs = [detached(make(microbatch)) for microbatch in range(3)]
    assert parts_of(merge(outputs, None)) == parts_of(expected())


def test_a_merge_spec_of_torch_is_kept_to():
    outputs = [(torch.full((2, 1), float(m)), torch.tensor(float(m))) for m in range(3)]
    columns, total = merge(outputs, (TensorChunkSpec(1), sum_reducer))
    assert columns.tolist() == [[0.0, 1.0, 2.0]] * 2
    assert total.item() == 3


REFUSED = {
    "an opaque class": (
        [Opaque(1), Opaque(1)],
        None,
        "the output is of type Opaque and differs between microbatches, so it cannot be merged: "
        "step_microbatches returns the outputs one by one, and return_outputs=False returns none",
    ),
    "numbers that differ": (
        [(torch.zeros(1), 1), (torch.zeros(1), 2)],
        None,
        "value 1 of the output is of type int and differs between microbatches, so it cannot be "
        "merged: step_microbatches returns the outputs one by one, and return_outputs=False "
        "returns none",
    ),
    "None beside a tensor": (
        [Answer(torch.zeros(1), None), Answer(torch.zeros(1), torch.zeros(1))],
        None,
        "cache of the output is of type NoneType and Tensor and differs between microbatches, so "
        "it cannot be merged: step_microbatches returns the outputs one by one, and "
        "return_outputs=False returns none",
    ),
    "other names": (
        [{"a": torch.zeros(1)}, {"b": torch.zeros(1)}],
        None,
        "the output of microbatch 1 has another structure than that of microbatch 0, so the "
        "outputs cannot be merged: step_microbatches returns the outputs one by one, and "
        "return_outputs=False returns none",
    ),
    "shapes that do not fit": (
        [torch.zeros(1, 2), torch.zeros(1, 3)],
        None,
        "the output has the shapes [1, 2], [1, 3], which cannot be merged along dimension 0: "
        "step_microbatches returns the outputs one by one, and return_outputs=False returns none; "
        "output_merge_spec merges along other dimensions",
    ),
    "a spec of another structure": (
        [torch.zeros(1), torch.zeros(1)],
        (TensorChunkSpec(0), TensorChunkSpec(0)),
        "output_merge_spec does not fit the outputs: Chunk tensor([0.]) did not match chunk spec ",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_outputs_that_cannot_be_merged_are_refused_with_a_way_out(kind):
    outputs, spec, message = REFUSED[kind]
    with pytest.raises(UsageError) as refused:
        merge(outputs, spec)
    assert str(refused.value)[: len(message)] == message


@pytest.mark.parametrize(
    ("output", "place", "named"),
    [
        ({"a": torch.zeros(1)}, 0, "dict"),
        ((torch.zeros(1), None), 1, "None"),
        ((torch.zeros(1), (torch.zeros(1),)), 1, "tuple"),
        ([torch.zeros(1), 3], 1, "int"),
        (Answer(torch.zeros(1)), 0, "Answer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_output_that_cannot_be_sent_is_refused_with_a_way_out(output, place, named):
    with pytest.raises(UsageError) as refused:
        sendable(output, "stage 0, F2")
    assert str(refused.value) == (
        f"stage 0, F2: output {place} must be a tensor, not {named}. Return the tensors for the "
        "next stage in one tuple; give other values to `step` as keyword arguments on the rank of "
        "the stage that takes them."
    )


def test_tensors_and_tuples_of_them_are_sent():
    one, other = torch.zeros(()), torch.zeros(0, 2)
    for output in ((one, other), [one, other], Pair(one, other)):
        assert sendable(output, "") == (one, other)
    assert sendable(one, "") == (one,)
    assert sendable((), "") == ()
