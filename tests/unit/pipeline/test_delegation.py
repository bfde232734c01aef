"""Tests of the choice, by measured cost, between the engine and the computing thread as the carrier
of messages."""

import pytest

from slackline.errors import UsageError
from slackline.pipeline import Came, Sent, Span, StepRecord
from slackline.pipeline._delegation import Delegation
from slackline.plan.pipeline import Instruction, Kind

US = 1000
SENT, CAME = Instruction(0, Kind.F, 0), Instruction(1, Kind.B, 0)


def record(cost_us, *, inline, delay_us=10):
    return StepRecord(
        rank=0,
        step=0,
        time_ns=0,
        wall_ns=20_000_000,
        plan="zb-h1",
        policy="ready",
        order="ready",
        spans=(Span(SENT, 0, 10_000_000),),
        waits=(),
        came=(Came(CAME, 15_000_000, delay_us * US, 64),),
        sends=(Sent(SENT, 64, cost_us * US, inline),),
        peak_held=((0, 1.0),),
    )


def settle(inline_us, delegated_us, delay_us=10):
    delegation = Delegation("auto")
    for _ in range(8):
        inline = delegation.inline(0)
        cost = inline_us if inline else delegated_us
        delegation.learn(record(cost, inline=inline, delay_us=delay_us))
    return delegation


def test_the_cheaper_way_is_taken_where_a_link_is_fast():
    cheap = settle(20, 100)
    assert cheap.inline(0)
    assert cheap.reasons() == {0: "inline: a send costs 20 us inline, 100 us delegated"}
    dear = settle(100, 90)
    assert not dear.inline(0)
    assert dear.reasons() == {0: "delegated: a send costs 100 us inline, 90 us delegated"}


def test_a_slow_link_is_never_tried():
    slow = settle(1, 100, delay_us=5000)
    assert not slow.inline(0)
    assert slow.reasons() == {0: "delegated: 5 ms under way, a forward takes 10 ms"}


def test_a_link_that_becomes_slow_is_delegated_at_once():
    delegation = settle(20, 100)
    delegation.learn(record(30_000, inline=True, delay_us=30_000))
    assert not delegation.inline(0)


def test_always_and_never_need_no_measuring():
    assert not Delegation("always").inline(0)
    assert Delegation("never").inline(0)
    message = r'^delegation must be one of always, never, auto, not "sometimes"$'
    with pytest.raises(UsageError, match=message):
        Delegation("sometimes")


def test_a_record_reads_as_text():
    assert str(record(20, inline=False)) == (
        "rank 0, step 0: 20 ms, computing 10 ms, waiting 0 s (zb-h1, policy ready)\n"
        "  stage 0: F 10 ms, B 0 s, W 0 s, at most 1 activations\n"
        "    gradients from stage 1 under way for 10 us"
    )
