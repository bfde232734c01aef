"""JSON and TOML of other programs, read by msgspec; an error names the key and the value."""

import json
import re
from typing import Any, TypeVar

import msgspec

from slackline.errors import UsageError

__all__ = ["convert", "parse_json"]

Kind = TypeVar("Kind")

_MOST_SHOWN = 80
"""The number of characters of a wrong value that an error shows."""

_PLACE = re.compile(r"(.*) - at `(?:key in )?\$(.*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*)`")
_TYPES = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def parse_json(text: str | bytes, decoder: "msgspec.json.Decoder[Kind]", name: str) -> Kind:
    """Return the object that a JSON text holds; `name` begins the sentence of an error.

    Raises UsageError for a text that is not JSON, and for a value of a wrong type, with its key.
    """
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError):
        pass  # The standard reader says where, and reads texts with halves of surrogate pairs.
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        beginning = text if isinstance(text, str) else text.decode(errors="replace")
        raise UsageError(f"{name} is not JSON, {error}: {_brief(beginning)}") from None
    return convert(given, decoder.type, name)


def convert(given: object, kind: type[Kind], name: str) -> Kind:
    """Return the values of a JSON or TOML text as an object of the type `kind`.

    Raises UsageError, which begins with `name`, for a value of a wrong type, with its key.
    """
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {_problem(str(error), given)}") from None


def _problem(message: str, given: Any) -> str:
    """Return msgspec's message on the data `given` as a sentence, with the place and the value."""
    found = _PLACE.fullmatch(message)
    message, place = (found[1], found[2]) if found else (message, "")
    value = given
    for step in _STEP.finditer(place.partition("[...]")[0]):
        value = value[step[1] if step[1] is not None else int(step[2])]
    place = place.removeprefix(".") or "it"
    if field := _FIELD.fullmatch(message):
        verb = "lacks" if field[1].startswith("missing") else "does not take"
        return f'{place} {verb} the key "{field[2]}"'
    if not message.startswith("Expected "):
        return f"{place}: {message[0].lower()}{message[1:]}"
    wanted, _, _ = message.removeprefix("Expected ").partition(", got ")
    wanted = re.sub(r"`(.*?)`", lambda name: _in_words(name[1]), wanted)
    shown = "" if "[...]" in place else f", not {_brief(value)}"
    return f"{place} must be {wanted}{shown}"


def _in_words(types: str) -> str:
    """Return the name of a type, or of several with bars between them, in words."""
    return " or ".join(_TYPES.get(each, each) for each in types.split(" | "))


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
