"""Tests of the grammar of changes, and of the changes that a run cannot have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from written_runs import Written

from slackline import faults, predict
from slackline.errors import UsageError
from slackline.plan import pipeline
from slackline.plan.collective import Collective, names

POSITIVE = st.integers(1, 9_999_999)
CHANGES = st.one_of(
    st.builds(predict.Nics, POSITIVE),
    st.builds(predict.Rate, st.integers(1, 10**13)),
    st.builds(predict.Latency, st.integers(0, 10**12)),
    st.builds(predict.Hosts, POSITIVE),
    st.builds(predict.Ranks, POSITIVE),
    st.builds(
        predict.PlanChange,
        st.sampled_from(names(Collective.ALL_REDUCE, helpers=1, by_host=True)),
    ),
    st.builds(predict.Bucket, st.integers(0, 1 << 40)),
    st.builds(predict.Compute, st.integers(1, 1000).map(float)),
    st.builds(predict.Schedule, st.sampled_from(pipeline.names()), st.none() | st.integers(1, 100)),
    st.just(predict.FaultChange(faults.parse("link 2-3 delay 30ms"))),
    st.just(predict.FaultChange(faults.parse("rank 1 slow 2x"))),
)


@given(CHANGES)
def test_a_change_has_a_text_that_is_parsed_to_it(change: predict.Change) -> None:
    assert predict.parse_change(str(change)) == change
    assert predict.parse_changes(f"{change}; {change}") == (change, change)


def test_both_forms_of_a_factor_are_read() -> None:
    assert predict.parse_change("compute x1.5") == predict.Compute(1.5)
    assert predict.parse_change("compute 0.5x") == predict.Compute(0.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it is empty"),
        (
            "speed 3",
            "it must start with one of nics, rate, latency, hosts, ranks, plan, bucket, compute, "
            "schedule, link, nic, rank, not 'speed'",
        ),
        ("nics", "'nics' needs one value, not ''"),
        ("nics 2 3", "'nics' needs one value, not '2 3'"),
        ("nics 0", "nics must be a positive integer, not '0'"),
        ("hosts -1", "hosts must be a positive integer, not '-1'"),
        ("rate 0Mbit", "the rate must be positive, not '0Mbit'"),
        ("compute x0", "a factor must be like x1.5, above 0 and at most x1000, not 'x0'"),
        ("compute 1.5", "a factor must be like x1.5, above 0 and at most x1000, not '1.5'"),
        (
            "plan tree",
            "the plan of an all_reduce must be one of direct, mesh, ring, reduce-broadcast, "
            "halving-doubling, torus, flat-tree, star, hierarchical, not 'tree'",
        ),
        ("schedule auto 8", "behind the schedule may stand memory N, not '8'"),
        ("schedule auto memory x", "memory must be a positive integer, not 'x'"),
        (
            "link 2 delay 3ms",
            "cannot read the fault 'link 2 delay 3ms': a link must be like 2-3 or 2>3, not '2'",
        ),
    ],
)
def test_a_wrong_change_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        predict.parse_change(text)
    assert str(caught.value) == f"cannot read the change {text!r}: {reason}; {predict.CHANGES}"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> predict.Run:
    directory = tmp_path_factory.mktemp("run")
    Written(steps=5).write(directory)
    return predict.load(directory)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "schedule 1f1b",
            "it has no pipeline; accepted are nics, rate, latency, hosts, ranks, plan, bucket, "
            "compute and faults",
        ),
        ("hosts 1", "a network needs at least 2 hosts"),
        (
            "link 2-4 delay 3ms",
            "there is no host 4 for 'link 2-4 delay 3ms': there are 4",
        ),
    ],
)
def test_a_change_that_the_run_cannot_have_is_refused(
    run: predict.Run, change: str, reason: str
) -> None:
    with pytest.raises(UsageError) as caught:
        predict.predict(run, predict.parse_changes(change))
    assert str(caught.value) == f"{run.name} cannot have the change {change!r}: {reason}"


def test_a_kind_of_change_is_given_once(run: predict.Run) -> None:
    with pytest.raises(UsageError) as caught:
        predict.predict(run, predict.parse_changes("nics 2; rate 1Gbit; nics 3"))
    assert str(caught.value) == "'nics' is changed twice, the second time by 'nics 3'"


def test_hosts_that_a_change_adds_may_have_faults(run: predict.Run) -> None:
    slow = predict.predict(run, predict.parse_changes("link 4-5 delay 30ms; hosts 6"), samples=8)
    plain = predict.predict(run, predict.parse_changes("hosts 6"), samples=8)
    assert slow.p50_ns > plain.p50_ns + 10_000_000


def test_a_run_that_a_fault_stops_is_refused(run: predict.Run) -> None:
    with pytest.raises(UsageError) as caught:
        predict.predict(run, predict.parse_changes("rank 2 kill"))
    assert str(caught.value).startswith("with 'rank 2 kill' the run cannot end: rank 2 is dead")
