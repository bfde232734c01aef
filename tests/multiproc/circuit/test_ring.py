"""Tests of real ranks whose sums are computed by Python twins of ring NICs, alone or together with
software NICs."""

import pytest
from ring_ranks import broken, digests, killed, late, many, trained

TWINS = ["twin"] * 4
MIXED = ["twin", "software", "software", "twin"]
ROTATING = {"SLACKLINE_PLAN": "ring", "SLACKLINE_ORDER": "auto"}


@pytest.mark.parametrize(
    ("rails", "most"),
    [
        ("shm,tcp", "5000"),
        ("udp", "5000"),
        *(
            pytest.param(rails, "100003", marks=pytest.mark.slow)
            for rails in ("shm,tcp", "tcp", "udp")
        ),
    ],
)
def test_sums_of_every_type_have_the_bits_of_software_over_every_rail(ring, software, rails, most):
    environment = {"SLACKLINE_RAILS": rails, "MOST": most}
    (expected,) = {each[0] for each in software(digests, MOST=most)}
    for nics in (TWINS, MIXED):
        for nic, found in zip(nics, ring(nics, digests, environment=environment), strict=True):
            assert found == [expected, "reduce-broadcast", nic == "twin"]


@pytest.mark.parametrize("rails", ["shm,tcp", pytest.param("udp", marks=pytest.mark.slow)])
def test_a_rotating_ring_of_twins_has_the_bits_of_the_software_s(ring, software, rails):
    environment = {**ROTATING, "SLACKLINE_RAILS": rails, "MOST": "5000"}
    (expected,) = {each[0] for each in software(digests, **ROTATING, MOST="5000")}
    for nics in (TWINS, MIXED):
        for nic, found in zip(nics, ring(nics, digests, environment=environment), strict=True):
            assert found == [expected, "ring", nic == "twin"]


@pytest.mark.parametrize(
    "size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 5))]
)
def test_a_rotating_ring_may_have_any_number_of_ranks(ring, software, size):
    environment = {**ROTATING, "MOST": "5000"}
    (expected,) = {each[0] for each in software(digests, size, **environment)}
    found = ring(["twin", *["software"] * (size - 1)], digests, environment=environment)
    assert [each[0] for each in found] == [expected] * size
    assert [each[2] for each in found] == [True] + [False] * (size - 1)


def test_training_through_twins_has_the_parameters_of_software(ring, software):
    expected = software(trained)
    assert ring(TWINS, trained) == expected
    assert ring(["software", "twin", "twin", "software"], trained) == expected


@pytest.mark.slow
def test_training_through_a_rotating_ring_of_twins_has_the_parameters_of_software(ring, software):
    assert ring(TWINS, trained, environment=ROTATING) == software(trained, **ROTATING)


@pytest.mark.parametrize(
    ("nics", "environment"),
    [
        pytest.param(TWINS, {}, id="twins-in rank order"),
        pytest.param(MIXED, ROTATING, id="mixed-rotating"),
        pytest.param(MIXED, {}, id="mixed-in rank order", marks=pytest.mark.slow),
        pytest.param(TWINS, ROTATING, id="twins-rotating", marks=pytest.mark.slow),
    ],
)
def test_more_tensors_than_a_nic_has_room_for_wait_and_are_summed(
    ring, software, nics, environment
):
    assert ring(nics, many, environment=environment) == software(many, **environment)


@pytest.mark.parametrize("environment", [{}, ROTATING], ids=["in rank order", "rotating"])
def test_a_device_that_fails_is_named_on_every_rank(ring, environment):
    for name, words in ring(TWINS, broken, environment=environment):
        assert name == "InternalError"
        assert words.startswith("the device of rank 1 (twin) failed: the board does not answer")


@pytest.mark.parametrize("rails", ["shm,tcp", "udp"])
def test_a_rank_that_is_killed_is_named_by_all_others(ring, rails):
    results = ring(TWINS, killed, environment={"SLACKLINE_RAILS": rails}, dying=(2,))
    assert [result for rank, result in enumerate(results) if rank != 2] == [["PeerError", 2]] * 3


@pytest.mark.parametrize("environment", [{}, ROTATING], ids=["in rank order", "rotating"])
def test_after_a_timeout_the_group_goes_on_and_its_memory_is_free_again(ring, environment):
    first, second = ring(["twin"] * 2, late, environment=environment)
    assert first == [["TimeoutError", *[[1.0]] * 69], 0]
    assert second == [[[1.0]] * 69, 0]
