"""Tests of the verdicts (reports of a fault) of all ranks, merged to one line per problem."""

from itertools import permutations

from slackline.detect import Condition, Deduplicator, Report, Verdict, find_stragglers

S = 1_000_000_000
MS = 1_000_000


def _verdict(
    source: int, target: int, condition: Condition = Condition.SLOW, *, at_s: int = 10
) -> Verdict:
    back = condition is Condition.BACK
    return Verdict(
        time_ns=at_s * S,
        since_ns=at_s * S,
        condition=condition,
        source=source,
        target=target,
        rail=0,
        reason=f"link {source}>{target} is {condition}",
        over_ns=0 if back else 30 * MS,
    )


def test_both_ends_say_it_and_it_is_shown_once() -> None:
    deduplicator = Deduplicator(4)
    deduplicator.take(0, 2, _verdict(2, 3))
    deduplicator.take(S // 5, 3, _verdict(2, 3))
    assert deduplicator.lines(S // 2) == []
    assert deduplicator.lines(S) == [Report("link 2>3 is slow", link=(2, 3, 0))]
    deduplicator.take(5 * S, 3, _verdict(2, 3, Condition.BACK, at_s=15))
    assert deduplicator.lines(5 * S) == []
    deduplicator.take(5 * S, 2, _verdict(2, 3, Condition.BACK, at_s=15))
    assert deduplicator.lines(5 * S) == [Report("link 2>3 is back", link=(2, 3, 0))]
    (episode,) = deduplicator.episodes
    assert (episode.since_ns, episode.until_ns) == (10 * S, 15 * S)


def test_a_rail_on_which_nothing_arrives_is_told_at_once() -> None:
    for condition in (Condition.CUT, Condition.SILENT):
        deduplicator = Deduplicator(4)
        deduplicator.take(S, 2, _verdict(2, 3, condition))
        assert deduplicator.due() == [S + 50 * MS]
        assert deduplicator.lines(S + 49 * MS) == []
        told = [Report(f"link 2>3 is {condition}", link=(2, 3, 0))]
        assert deduplicator.lines(S + 50 * MS) == told
    deduplicator = Deduplicator(4)
    deduplicator.take(S, 2, _verdict(2, 3, Condition.CUT))
    deduplicator.take(S + 49 * MS, 2, _verdict(2, 3, Condition.BACK))
    assert deduplicator.lines(2 * S) == []


def test_both_directions_and_both_states_of_a_broken_rail_are_one_line() -> None:
    deduplicator = Deduplicator(4)
    deduplicator.take(S, 2, _verdict(2, 3, Condition.SILENT))
    deduplicator.take(S + MS, 3, _verdict(3, 2, Condition.SILENT))
    assert [each.link for each in deduplicator.lines(2 * S)] == [(2, 3, 0)]
    deduplicator.take(2 * S, 2, _verdict(2, 3, Condition.CUT))
    deduplicator.take(2 * S, 3, _verdict(3, 2, Condition.CUT))
    assert deduplicator.due() == []
    assert deduplicator.lines(3 * S) == []
    deduplicator.take(3 * S, 2, _verdict(2, 3, Condition.BACK))
    assert deduplicator.lines(4 * S) == [Report("link 2>3 is back", link=(2, 3, 0))]
    deduplicator.take(4 * S, 3, _verdict(3, 2, Condition.BACK))
    assert deduplicator.lines(6 * S) == []


def test_a_late_rank_is_shown_instead_of_its_links() -> None:
    deduplicator = Deduplicator(4)
    for peer in (0, 1, 2):
        deduplicator.take(0, peer, _verdict(peer, 3))
    assert deduplicator.lines(2 * S) == [
        Report(
            "rank 3 answers late: 30 ms over the usual on all 3 links into it; "
            "the rank, its host or its NIC is slow, not the links",
            rank=3,
        )
    ]
    for peer in (0, 1, 2):
        deduplicator.take(9 * S, peer, _verdict(peer, 3, Condition.BACK))
    assert deduplicator.lines(9 * S) == [Report("rank 3 answers in time again", rank=3)]


def test_links_that_are_slow_one_after_the_other_name_the_network_and_no_rank() -> None:
    deduplicator = Deduplicator(4)
    told = []
    pairs = list(permutations(range(4), 2))
    for number, (source, target) in enumerate(pairs):
        at_ns = number * S // 12
        deduplicator.take(at_ns, source, _verdict(source, target))
        told += deduplicator.lines(at_ns)
    assert told == []
    assert deduplicator.due()[-1] == 11 * S // 12 + S
    told += [line for quarter in range(4, 12) for line in deduplicator.lines(quarter * S // 4)]
    assert told == [
        Report(
            "the network is slow: 30 ms over the usual on all links between 4 ranks; "
            "no single rank, NIC or link is slow"
        )
    ]
    told = []
    for number, (source, target) in enumerate(pairs):
        at_ns = 9 * S + number * S // 24
        deduplicator.take(at_ns, source, _verdict(source, target, Condition.BACK, at_s=19))
        told += deduplicator.lines(at_ns)
    assert told + deduplicator.lines(11 * S) == [Report("the network is as usual again")]


def test_at_the_end_nothing_is_held_back() -> None:
    deduplicator = Deduplicator(2)
    deduplicator.take(0, 0, _verdict(0, 1))
    assert deduplicator.lines(0) == []
    assert deduplicator.finish() == [Report("link 0>1 is slow", link=(0, 1, 0))]
    assert deduplicator.finish() == []


def test_a_trouble_that_ended_before_it_was_shown_is_not_shown_but_kept() -> None:
    deduplicator = Deduplicator(2)
    deduplicator.take(0, 0, _verdict(0, 1))
    deduplicator.take(S // 2, 0, _verdict(0, 1, Condition.BACK))
    assert deduplicator.finish() == []
    assert len(deduplicator.episodes) == 1


def test_one_slow_link_blames_no_rank_and_two_ranks_have_nothing_to_compare() -> None:
    assert find_stragglers(4, {(0, 3): MS, (1, 3): MS}) == []
    assert find_stragglers(2, {(0, 1): MS, (1, 0): MS}) == []


def test_a_rank_that_sends_late_to_all_is_told_from_one_that_answers_late() -> None:
    (straggler,) = find_stragglers(3, {(1, 0): 2 * MS, (1, 2): 4 * MS})
    assert straggler.reason == (
        "rank 1 sends late: 4 ms over the usual on all 2 links out of it; "
        "its host or its NIC is slow, not the links"
    )
