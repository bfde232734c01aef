"""Tests that JSON of a wrong form is refused by a sentence with the key and the value."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec
import pytest

from slackline._checked import convert, parse_json
from slackline.errors import UsageError


class Pair(NamedTuple):
    """Two numbers, a list in JSON."""

    one: int
    other: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """An object within another one."""

    name: str
    speed: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Whole:
    """An object with values of all kinds."""

    ranks: int
    kind: Literal["ring", "mesh"] = "ring"
    pairs: tuple[Pair, ...] = ()
    parts: tuple[Part, ...] = ()
    counts: dict[str, int] | None = None


WHOLE = msgspec.json.Decoder(Whole)


def test_a_text_of_the_right_form_becomes_an_object() -> None:
    text = '{"ranks":2,"news":[],"pairs":[[1,2]],"parts":[{"name":"a","speed":2}]}'
    expected = Whole(ranks=2, pairs=(Pair(1, 2),), parts=(Part(name="a", speed=2.0),))
    assert parse_json(text, WHOLE, "the file") == expected
    assert parse_json(text.encode(), WHOLE, "the file") == expected


def test_half_of_a_surrogate_pair_is_read_as_json_of_python_writes_it() -> None:
    found = parse_json('{"ranks":2,"parts":[{"name":"\\udcff"}]}', WHOLE, "the file")
    assert found.parts == (Part(name="\udcff"),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", " is not JSON, Expecting value: line 1 column 1 (char 0): ''"),
        (b'{"ranks":"\xff"}', "'utf-8' codec can't decode byte 0xff in position 10"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ("[1]", ": it must be an object, not [1]"),
        ("{}", ': it lacks the key "ranks"'),
        ('{"ranks":true}', ": ranks must be an integer, not True"),
        ('{"ranks":1,"kind":"star"}', ": kind: invalid enum value 'star'"),
        ('{"ranks":1,"pairs":[[1,2],[3]]}', ": pairs[1] must be a list of length 2, not [3]"),
        ('{"ranks":1,"pairs":[[1,2.5]]}', ": pairs[0][1] must be an integer, not 2.5"),
        ('{"ranks":1,"parts":[{"name":"a"},{}]}', ': parts[1] lacks the key "name"'),
        ('{"ranks":1,"parts":[{"name":7}]}', ": parts[0].name must be text, not 7"),
        ('{"ranks":1,"counts":{"a":[]}}', ": counts[...] must be an integer"),
        ('{"ranks":1,"counts":3}', ": counts must be an object or null, not 3"),
    ],
)
def test_a_text_of_a_wrong_form_is_refused(text: str | bytes, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_json(text, WHOLE, "the file")
    told = str(caught.value)
    assert told.startswith("the file")
    assert problem in told
    assert len(told) < 300


def test_an_unknown_key_is_named_where_it_is_not_allowed() -> None:
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        rate: int = 0

    with pytest.raises(UsageError) as caught:
        convert({"rat": 3}, Strict, "lab.toml")
    assert str(caught.value) == 'lab.toml: it does not take the key "rat"'
