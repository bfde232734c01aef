"""Tests of the records of slackline._lazy, which must behave as frozen dataclasses do."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from slackline._lazy import record


@record(frozen=True, kw_only=True)
class Named:
    """A record whose fields are named, one with a default."""

    size: int
    text: str = "none"

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError(f"size must be at least 0, not {self.size}")


@record(frozen=True, slots=True)
class Slotted:
    """A record with slots and a field without a name in the call."""

    first: int
    second: tuple[int, ...] = ()


@record(frozen=True)
class Single:
    """A record with one field."""

    value: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Plain:
    """A dataclass with the fields of Named."""

    size: int
    text: str = "none"


RECORDS = (Named(size=3), Slotted(1, (2,)), Single((5,)))


def test_a_record_has_the_text_the_fields_and_the_signature_of_a_dataclass() -> None:
    ours, plain = Named(size=3), Plain(size=3)
    assert repr(ours) == repr(plain).replace("Plain", "Named")
    assert repr(Slotted(1)) == "Slotted(first=1, second=())"
    assert dataclasses.asdict(ours) == dataclasses.asdict(plain)
    assert dataclasses.replace(ours, text="x") == Named(size=3, text="x")
    assert str(inspect.signature(Named)) == str(inspect.signature(Plain))
    with pytest.raises(TypeError, match=r"Named.__init__\(\) takes 1 positional argument but 2"):
        Named(3)  # type: ignore[misc]


@pytest.mark.parametrize("given", RECORDS, ids=repr)
def test_a_record_is_compared_and_hashed_by_its_values_and_its_class(given: Any) -> None:
    other = copy.copy(given)
    assert other is not given
    assert other == given
    assert hash(other) == hash(given)
    assert given != Plain(size=3)
    assert given != dataclasses.astuple(given)
    assert len({given, other}) == 1
    assert Named(size=3) != Named(size=4)


@pytest.mark.parametrize("given", RECORDS, ids=repr)
def test_a_record_cannot_be_changed_and_survives_a_pickle(given: Any) -> None:
    name = dataclasses.fields(given)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"^cannot assign to field {name!r}$"):
        setattr(given, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"^cannot delete field {name!r}$"):
        delattr(given, name)
    assert pickle.loads(pickle.dumps(given)) == given


def test_a_record_checks_its_values_in_post_init() -> None:
    with pytest.raises(ValueError, match=r"^size must be at least 0, not -1$"):
        Named(size=-1)


def test_a_record_with_slots_has_no_dictionary() -> None:
    assert not hasattr(Slotted(1), "__dict__")
