"""Tests with recorded samples of trainings whose probes wait behind the rails' own data.

In the job *long_transfers* two hosts at 200 Mbit/s train a model of 114 MB: rank 0 first sends the
whole model, so that the usual latency of the other direction is learned without data. Then each
step sends in both directions for four seconds. In *shared_nic* each of four hosts sends to three
peers over one NIC of 200 Mbit/s, four times 256 KiB a step. *delayed_link* is the same job, with
30 ms more from rank 1 to rank 2 after 15 s.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_records import recorded, told

from slackline.detect import Condition

S, MS = 1_000_000_000, 1_000_000
DELAYED_AFTER_S = (14, 17)
"""The fault began within these seconds after the first samples."""


@pytest.mark.parametrize("rank", [0, 1])
def test_probes_behind_the_rails_own_data_are_no_delay(rank: int) -> None:
    assert told("long_transfers", rank) == []


@pytest.mark.parametrize("rank", [1, 2])
def test_ranks_that_share_their_nics_among_peers_tell_no_delay(rank: int) -> None:
    assert told("shared_nic", rank) == []


@pytest.mark.parametrize("rank", [1, 2])
def test_a_delayed_link_is_told_although_a_longer_path_has_more_data_on_it(rank: int) -> None:
    """The bytes on the way grow with the delay, so they could explain all of it."""
    (verdict,) = told("delayed_link", rank)
    assert verdict.condition is Condition.SLOW
    assert (verdict.source, verdict.target) == (1, 2)
    began_ns = recorded("delayed_link", rank)[0][0]
    assert DELAYED_AFTER_S[0] * S < verdict.time_ns - began_ns < DELAYED_AFTER_S[1] * S


@given(
    rank=st.integers(0, 1),
    after_ms=st.integers(10_000, 24_000),
    late_ms=st.integers(30, 200),
)
def test_a_delay_is_found_although_data_fill_the_link(
    rank: int, after_ms: int, late_ms: int
) -> None:
    first, *_ = told(
        "long_transfers", rank, peer=1 - rank, after_ns=after_ms * MS, late_ns=late_ms * MS
    )
    assert first.condition is Condition.SLOW
    assert (first.source, first.target) == (rank, 1 - rank)
    found_ns = first.time_ns - recorded("long_transfers", rank)[0][0] - after_ms * MS
    assert 0 < found_ns < 4 * S


@settings(max_examples=25)
@given(
    ends=st.sampled_from([(rank, peer) for rank in (1, 2) for peer in range(4) if rank != peer]),
    after_ms=st.integers(14_000, 26_000),
    late_ms=st.integers(60, 200),
)
def test_a_delay_is_found_although_peers_share_the_nic(
    ends: tuple[int, int], after_ms: int, late_ms: int
) -> None:
    """Queues of the shared NIC hide shorter delays: some of its links vary by 10 ms."""
    rank, peer = ends
    first, *_ = told("shared_nic", rank, peer=peer, after_ns=after_ms * MS, late_ns=late_ms * MS)
    assert first.condition is Condition.SLOW
    assert (first.source, first.target) == (rank, peer)
    found_ns = first.time_ns - recorded("shared_nic", rank)[0][0] - after_ms * MS
    assert 0 < found_ns < 4 * S
