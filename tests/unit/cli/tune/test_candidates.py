"""Tests of the candidates: they change what the script uses, and nothing that it has chosen."""

from collections.abc import Mapping

import pytest

from slackline.cli._tune._candidates import Candidate, candidates, combined
from slackline.cli._tune._facts import Facts
from slackline.plan.collective import Collective, generate
from slackline.records import Setting

ENGINE = {
    "order": "auto",
    "plan": "auto",
    "shares": "auto",
    "aggregator": "",
    "rails": "shm,tcp",
    "segment": "131072B",
}


def facts(
    *,
    ranks: int = 4,
    values: Mapping[str, str] | None = None,
    origins: Mapping[str, str] | None = None,
    plans: Mapping[str, int] | None = None,
    wires: bool = True,
    one_stage_a_rank: bool = True,
) -> Facts:
    settings = {
        name: Setting(
            rank=0, time_ns=0, name=name, value=value, origin=(origins or {}).get(name, "default")
        )
        for name, value in {**ENGINE, **(values or {})}.items()
    }
    return Facts(
        ranks=ranks,
        settings=settings,
        plans={"ring": 100, "direct": 3} if plans is None else plans,
        largest_bytes=4 << 20,
        wires=wires,
        one_stage_a_rank=one_stage_a_rank,
    )


def of(name: str, given: Facts) -> list[str]:
    return [each.settings[name] for each in candidates(given) if name in each.settings]


def test_a_job_over_wires_tries_every_other_plan_segment_and_rail() -> None:
    given = facts()
    assert of("plan", given) == [
        "direct",
        "mesh",
        "reduce-broadcast",
        "halving-doubling",
        "torus",
        "flat-tree",
    ]
    assert of("segment", given) == ["64KiB", "256KiB", "512KiB", "1MiB"]
    assert of("rails", given) == ["shm,udp"]
    assert {name for each in candidates(given) for name in each.settings} == {
        "plan",
        "segment",
        "rails",
    }


def test_the_settings_take_turns_and_each_candidate_changes_one() -> None:
    found = [dict(each.settings) for each in candidates(facts())]
    assert found[:4] == [
        {"plan": "direct"},
        {"segment": "64KiB"},
        {"rails": "shm,udp"},
        {"plan": "mesh"},
    ]
    assert all(len(each) == 1 for each in found)


@pytest.mark.parametrize("order", ["auto", "rank"])
def test_sums_in_rank_order_stay_in_rank_order(order: str) -> None:
    given = facts(values={"order": order}, plans={"mesh": 1}, wires=order == "rank")
    found = of("plan", given)
    assert found == ["direct", "reduce-broadcast", "flat-tree"]
    assert all(generate(Collective.ALL_REDUCE, name, 4).rank_ordered for name in found)


def test_two_ranks_have_one_order_so_every_plan_is_tried() -> None:
    found = of("plan", facts(ranks=2, plans={"mesh": 1}, wires=False))
    assert found == [
        "direct",
        "ring",
        "reduce-broadcast",
        "halving-doubling",
        "torus",
        "flat-tree",
    ]


def test_an_aggregator_allows_the_star() -> None:
    assert "star" not in of("plan", facts())
    assert "star" in of("plan", facts(values={"aggregator": "10.0.0.9:7000"}))


def test_a_job_within_a_host_keeps_its_rails_and_its_segment_of_shared_memory() -> None:
    given = facts(wires=False)
    assert of("rails", given) == []
    assert of("segment", given) == ["64KiB", "128KiB", "512KiB", "1MiB"]


def test_segments_longer_than_a_chunk_are_not_tried() -> None:
    small = facts(ranks=40)  # chunks of 105 KB
    assert of("segment", small) == ["64KiB"]


@pytest.mark.parametrize("origin", ["argument", "environment"])
def test_a_chosen_setting_is_left_alone(origin: str) -> None:
    given = facts(origins={"plan": origin, "segment": origin, "rails": origin})
    assert candidates(given) == []


def test_a_job_without_all_reduces_has_no_plan_to_try() -> None:
    assert of("plan", facts(plans={})) == []


def test_group_sizes_lie_around_the_one_that_the_library_found() -> None:
    found = facts(values={"group_bytes": "1048576B"}, origins={"group_bytes": "trial"})
    assert of("group_bytes", found) == ["256KiB", "4MiB", "64KiB", "16MiB"]
    alone = facts(values={"group_bytes": "0B"}, origins={"group_bytes": "trial"})
    assert of("group_bytes", alone) == []
    unknown = facts(values={"group_bytes": ""})
    assert of("group_bytes", unknown) == []


def test_a_pipeline_tries_schedules_for_its_placement_and_both_senders() -> None:
    pipeline = {"schedule": "auto", "schedule_memory": "", "delegation": "auto"}
    given = facts(values=pipeline)
    assert of("schedule", given) == [
        *("ready", "slack", "adaptra", "gpipe", "1f1b", "zb-h1", "zb-h2", "zero-bubble"),
    ]
    assert of("delegation", given) == ["always", "never"]
    shared = facts(values=pipeline, one_stage_a_rank=False)
    assert of("schedule", shared) == ["ready", "interleaved", "zb-v", "dualpipe-v"]


def test_candidates_combine_if_they_change_different_settings() -> None:
    ring, mesh = Candidate(settings={"plan": "ring"}), Candidate(settings={"plan": "mesh"})
    long = Candidate(settings={"segment": "1MiB"})
    both = combined(ring, long)
    assert both == Candidate(settings={"plan": "ring", "segment": "1MiB"})
    assert str(both) == "plan ring, segment 1MiB"
    assert combined(ring, mesh) is None
    assert str(Candidate()) == "defaults"
