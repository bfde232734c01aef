"""Tests of the files of profiles and clusters: both forms, and errors that name the place."""

import json
from fractions import Fraction

import pytest

from slackline.errors import UsageError
from slackline.plan.partition import (
    Cluster,
    Host,
    Layer,
    Link,
    Pair,
    Profile,
    format_profile,
    parse_model,
)

LAYER = """[[layer]]
forward = "3ms"
backward_input = "2.5ms"
backward_weight = "2ms"
output = "16MiB"
parameters = "48MiB"
activation = "96MiB"
"""
HOSTS = """[[host]]
name = "a"
devices = 4
speed = 1.5
memory = "80GiB"

[[host]]
name = "b"

[link]
rate = "100Gbit"
latency = "10us"

[inside]
rate = "400Gbit"

[[pair]]
hosts = ["a", "b"]
rate = "10Gbit"
latency = "2ms"
"""
MS, MIB = 10**9, 1 << 20
BLOCK = Layer(
    name="0",
    forward_ps=3 * MS,
    backward_input_ps=5 * MS // 2,
    backward_weight_ps=2 * MS,
    output_bytes=16 * MIB,
    parameter_bytes=48 * MIB,
    activation_bytes=96 * MIB,
)
CLUSTER = Cluster(
    hosts=(
        Host(name="a", devices=4, speed=Fraction(3, 2), memory_bytes=80 << 30),
        Host(name="b"),
    ),
    between=Link(rate_bps=100 * 10**9, latency_ps=10 * 10**6),
    inside=Link(rate_bps=400 * 10**9),
    pairs=(Pair(hosts=("a", "b"), link=Link(rate_bps=10**10, latency_ps=2 * MS)),),
)


def test_a_toml_file_has_layers_and_hosts() -> None:
    found = parse_model(LAYER + HOSTS, "model.toml")
    assert found.profile == Profile(layers=(BLOCK,), parameter_copies=4)
    assert found.cluster == CLUSTER


def test_either_may_stand_in_a_file_of_its_own() -> None:
    assert parse_model(LAYER, "model.toml").cluster is None
    found = parse_model(HOSTS, "hosts.toml")
    assert (found.profile, found.cluster) == (None, CLUSTER)


def test_a_profile_reads_back_from_json() -> None:
    profile = Profile(layers=(BLOCK, BLOCK), parameter_copies=2)
    found = parse_model(format_profile(profile), "model.json")
    assert (found.profile, found.cluster) == (profile, None)


def test_json_has_the_same_keys() -> None:
    layer = json.loads(format_profile(Profile(layers=(BLOCK,))))["layer"][0]
    host = {"name": "a", "speed": 0.5}
    found = parse_model(json.dumps({"layer": [layer], "host": [host]}), "model.json")
    assert found.profile == Profile(layers=(BLOCK,))
    assert found.cluster == Cluster(hosts=(Host(name="a", speed=Fraction(1, 2)),))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LAYER.replace('forward = "3ms"\n', ""), 'm.toml: [layer 0] lacks "forward"'),
        (
            LAYER + LAYER.replace('"3ms"', '"3"'),
            "m.toml: [layer 1] forward: a duration must be a number and one of ns, us, ms, s, min, "
            "h, not '3'",
        ),
        (LAYER.replace('"16MiB"', "16"), "m.toml: [layer 0] output: must be text, not 16"),
        (
            LAYER + "colour = 1\n",
            'm.toml: [layer 0] does not take the key "colour"; it takes '
            "name, forward, backward_input, "
            "backward_weight, output, parameters, activation",
        ),
        (
            LAYER.replace('"3ms"', '"0ms"'),
            "m.toml: a profile must have a layer with a forward longer than 0",
        ),
        (
            HOSTS.replace("speed = 1.5", "speed = 0"),
            "m.toml: [host 0] speed: must be a positive number, not 0",
        ),
        (
            HOSTS.replace("speed = 1.5", "speed = inf"),
            "m.toml: [host 0] speed: must be a positive number, not inf",
        ),
        (
            HOSTS.replace("devices = 4", "devices = 0"),
            "m.toml: [host 0] devices: must be a positive integer, not 0",
        ),
        (
            HOSTS.replace('["a", "b"]', '["a"]'),
            "m.toml: [pair 0] hosts: must be the names of two hosts, not ['a']",
        ),
        (HOSTS.replace('["a", "b"]', '["a", "c"]'), "m.toml: there is no host 'c'; hosts are a, b"),
        (
            HOSTS.replace('["a", "b"]', '["a", "a"]'),
            "m.toml: a pair must name two hosts, not 'a' twice",
        ),
        (
            HOSTS + HOSTS[HOSTS.index("[[pair]]") :],
            "m.toml: hosts a and b have two links; give one",
        ),
        (
            HOSTS.replace('"10Gbit"', '"0bit"'),
            "m.toml: [pair 0] rate: must be more than 0, not '0bit'",
        ),
        (
            HOSTS.replace('name = "b"', 'name = "a"'),
            "m.toml: hosts must have different names; 2 are 'a'",
        ),
        (
            HOSTS[: HOSTS.index("[link]")],
            "m.toml: hosts a and b have no link; give one to the pair, or to all",
        ),
        ("parameter_copies = 2\n", "m.toml: the file has neither a [[layer]] nor a [[host]]"),
        (
            "parameter_copies = 0\n" + LAYER,
            "m.toml: parameter_copies: must be a positive integer, not 0",
        ),
        (LAYER + '[link]\nrate = "1Gbit"\n', "m.toml: the file has links, but no [[host]]"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(content: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_model(content, "m.toml")
    assert str(error.value) == message


def test_a_file_that_is_not_json_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^m\.json is not JSON: "):
        parse_model("{", "m.json")
    with pytest.raises(UsageError, match=r"^m\.json must be a JSON object, not '\[1\]'$"):
        parse_model("[1]", "m.json")
