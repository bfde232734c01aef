"""The figures of a text that people can hardly read: too many digits, no unit, a wrong plural."""

import re

_WORDS = ("absorbs", "us", "ms", "ns", "is", "was", "has", "as")
_NAME = re.compile(r"(/[\w./-]+)|\b\d+(\.\d+){2,}\b|[\w.-]+\.(toml|jsonl|py)\b")


def faults_of(text: str) -> list[str]:
    """Return the figures of a text that people can hardly read."""
    text = _NAME.sub("NAME", text)
    found = re.findall(r"\d\.?\d*e[+-]?\d+\b", text)
    found += re.findall(r"\b\d{5,} ?(?:bytes|B)\b|\b\d{5,}[kKMG]i?B\b", text)
    plurals = re.findall(r"(?<![\d.,:-])\b1 ([a-z]+s)\b", text)
    found += [f"1 {word}" for word in plurals if word not in _WORDS and not word.endswith("ss")]
    for number in re.findall(r"(?<![\w.])\d+\.\d+(?! s\b)", text):  # A moment has one decimal.
        if len(number.replace(".", "").lstrip("0")) > 3:
            found.append(number)
    return found
