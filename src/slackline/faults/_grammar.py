"""The parser of faults in text form: "link 2-3 delay 30ms loss 1% from 10s for 5s"."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from slackline.errors import UsageError
from slackline.faults._model import ACTIONS, Effects, Fault, LinkFault, NicFault, RankFault
from slackline.units import parse_duration_ns, parse_factor, parse_percent, parse_rate

__all__ = ["GRAMMAR", "parse"]

GRAMMAR = """\
link A-B EFFECT... | link A>B EFFECT... | nic HOST.NIC EFFECT... | nic HOST.NIC flap TIME \
| rank N kill | rank N stop | rank N slow FACTORx, \
each with [from TIME] [for TIME] behind it; \
EFFECT is delay TIME, jitter TIME, rate RATE, loss P%, duplicate P%, reorder P%, corrupt P%, down \
or seed N; times are like 30ms, rates like 100Mbit; a semicolon stands between two faults"""
"""The grammar of a fault in one line, for error messages."""

_LINK = re.compile(r"(\d{1,6})([->])(\d{1,6})", re.ASCII)
_NIC = re.compile(r"(\d{1,6})\.(\d{1,6})", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise UsageError(f"{text!r} is not a number")
    return int(text)


class _Word(NamedTuple):
    """The field that a word sets, and the parser of the word's value; None if it takes no value."""

    field: str
    value: Callable[[str], object] | None


_EFFECTS = {
    "delay": _Word("delay_ns", parse_duration_ns),
    "jitter": _Word("jitter_ns", parse_duration_ns),
    "rate": _Word("rate_bps", parse_rate),
    "loss": _Word("loss", parse_percent),
    "duplicate": _Word("duplicate", parse_percent),
    "reorder": _Word("reorder", parse_percent),
    "corrupt": _Word("corrupt", parse_percent),
    "down": _Word("down", None),
    "seed": _Word("seed", _number),
}
_FLAP = {"flap": _Word("flap_ns", parse_duration_ns)}
_TIMES = {
    "from": _Word("start_ns", parse_duration_ns),
    "for": _Word("length_ns", parse_duration_ns),
}


def parse(text: str) -> Fault:
    """Parse one fault; str() of the result gives an equivalent text.

    Raises UsageError that names the first wrong word and shows the grammar.
    """
    words = iter(text.split())
    try:
        kind = next(words, None)
        if kind not in _KINDS:
            known = ", ".join(_KINDS)
            raise UsageError(
                f"it must start with one of {known}, not {kind!r}" if kind else "it is empty"
            )
        return _KINDS[kind](words)
    except UsageError as error:
        raise UsageError(f"cannot read the fault {text.strip()!r}: {error}; {GRAMMAR}") from None


def _link(words: Iterator[str]) -> Fault:
    target = next(words, "")
    match = _LINK.fullmatch(target)
    if match is None:
        raise UsageError(f"a link must be like 2-3 or 2>3, not {target!r}")
    given = _settings(words, _EFFECTS | _TIMES)
    return LinkFault(
        source=int(match[1]),
        target=int(match[3]),
        both=match[2] == "-",
        effects=_take_effects(given),
        **given,
    )


def _nic(words: Iterator[str]) -> Fault:
    target = next(words, "")
    match = _NIC.fullmatch(target)
    if match is None:
        raise UsageError(f"a NIC must be HOST.NIC, such as 2.1, not {target!r}")
    given = _settings(words, _EFFECTS | _FLAP | _TIMES)
    return NicFault(host=int(match[1]), nic=int(match[2]), effects=_take_effects(given), **given)


def _rank(words: Iterator[str]) -> Fault:
    rank = _number(next(words, ""))
    action = next(words, "")
    if action not in ACTIONS:
        raise UsageError(f"{action!r} is none of {', '.join(ACTIONS)}")
    factor = parse_factor(next(words, "")) if action == "slow" else 1.0
    return RankFault(rank=rank, action=action, factor=factor, **_settings(words, _TIMES))


_KINDS = {"link": _link, "nic": _nic, "rank": _rank}


def _settings(words: Iterator[str], known: Mapping[str, _Word]) -> dict[str, Any]:
    """Return the values that the remaining words set, by field."""
    given: dict[str, Any] = {}
    for word in words:
        if word not in known:
            raise UsageError(f"{word!r} is none of {', '.join(known)}")
        field, read = known[word]
        if field in given:
            raise UsageError(f"{word!r} occurs twice")
        if read is None:
            given[field] = True
            continue
        value = next(words, None)
        if value is None:
            raise UsageError(f"{word!r} needs a value")
        given[field] = read(value)
        if not given[field] and word not in ("from", "seed"):
            raise UsageError(f"{word} must be positive, not {value!r}")
    return given


def _take_effects(given: dict[str, Any]) -> Effects:
    """Remove the fields of effects from `given`; return the effects."""
    fields = [word.field for word in _EFFECTS.values() if word.field in given]
    return Effects(**{field: given.pop(field) for field in fields})
