"""Tests of the names that recorded jobs get, whose networks were slow before the jobs began."""

from pathlib import Path

import pytest
from recorded_jobs import unpack

from slackline.causes import Kind, Watch

NAMES = [
    ("even", "no fault", None, ""),
    ("pipeline", "no fault, and stages that compute longer one after the other", None, ""),
    ("tenth", "nic 2.0 rate 20Mbit", Kind.NIC, "NIC 0 of host 2: it carries "),
    ("half", "nic 1.0 rate 100Mbit", Kind.NIC, "NIC 0 of host 1: it carries "),
    ("loss", "link 0>1 loss 3%", Kind.LINK, "link 0>1: it loses "),
    ("cable", "link 2-0 loss 1%, 2-1, 2-3", Kind.NIC, "NIC 0 of host 2: it loses "),
    ("delay", "link 1-2 delay 30ms", Kind.LINK, "link 1-2: its delay is longer, "),
    ("bursts", "link 1-2 delay 30ms", Kind.LINK, "link 1-2: its delay is longer, "),
    ("direction", "link 3>0 rate 50Mbit", Kind.LINK, "link 3>0: it carries "),
    ("jitter", "link 0-3 delay 2ms jitter 20ms", Kind.LINK, "link 0-3: its delay is longer, "),
    ("corrupt", "link 1>3 corrupt 1%", Kind.LINK, "link 1>3: it loses "),
    ("process", "rank 2 slow 2x", Kind.RANK, "rank 2: it is slower than the others, "),
]


@pytest.mark.parametrize(("name", "fault", "kind", "begin"), NAMES, ids=[row[0] for row in NAMES])
def test_a_recorded_job_gets_the_name_of_its_fault(
    tmp_path: Path, name: str, fault: str, kind: Kind | None, begin: str
) -> None:
    opened_ns = unpack(name, tmp_path)
    watch = Watch.recorded(tmp_path, 2**62)
    assert not watch.job.problems
    if kind is None:
        assert not watch.spells
        return
    (spell,) = watch.spells
    assert spell.cause.kind is kind, fault
    assert spell.cause.sentence.startswith(begin)
    assert ", since the start; " in spell.cause.sentence
    assert spell.until_ns is None
    # The first step begins 2 s after the first record; ranks differ after tens of noisy steps.
    assert (spell.named_ns - opened_ns) / 1e9 < (14 if kind is Kind.RANK else 12)


def test_the_first_page_shows_the_sentence_of_a_recorded_job(tmp_path: Path) -> None:
    unpack("tenth", tmp_path)
    (spell,) = Watch.recorded(tmp_path, 2**62).spells
    readme = Path(__file__).parents[3] / "README.md"
    assert f"\ncause: {spell.cause.sentence}\n" in readme.read_text(encoding="utf-8")
