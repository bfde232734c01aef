"""The TOML and JSON forms of profiles and clusters: the same tables and keys in both.

parameter_copies = 4             copies of the parameters that training holds; 4

[[layer]]                        one table for each layer, in order
name = "block 0"                 the layer's number where it is left out
forward = "3ms"                  times of one microbatch on the reference device
backward_input = "3.2ms"
backward_weight = "2.9ms"
output = "16MiB"                 the size of the output
parameters = "48MiB"
activation = "96MiB"             the memory from the forward to the backward for the weights

[[host]]
name = "a"
devices = 4                      1 where it is left out
speed = 1.5                      relative to the reference device; 1
memory = "80GiB"                 of each device; no limit where it is left out

[link]                           between hosts without a pair of their own
rate = "100Gbit"
latency = "10us"                 0 where it is left out

[inside]                         between devices of one host; no time where it is left out
rate = "400Gbit"

[[pair]]                         the link between two hosts
hosts = ["a", "b"]
rate = "10Gbit"
latency = "2ms"

A file may have the layers alone, or the hosts alone.
"""

import json
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from slackline._toml import Table, duration_ps, integer, listed, rate, size, text
from slackline.errors import UsageError
from slackline.plan.partition._cluster import Cluster, Host, Link, Pair
from slackline.plan.partition._profile import Layer, Profile
from slackline.units import format_bytes, format_duration_ns

__all__ = ["Model", "format_profile", "parse_model"]

_PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The content of a file: a profile, a cluster, or both."""

    profile: Profile | None
    cluster: Cluster | None


def parse_model(content: str, name: str) -> Model:
    """Parse the text of the file `name`, JSON if the name ends in ".json", and TOML otherwise.

    Raises UsageError that names the file, the table, the key, and the accepted values.
    """
    table = _json(content, name) if name.endswith(".json") else Table.parse(content, name)
    copies = table.take("parameter_copies", _positive, 4)
    layers = [_layer(each, number) for number, each in enumerate(table.tables("layer"))]
    hosts = [_host(each) for each in table.tables("host")]
    between, inside = _link_if_there(table, "link"), _link_if_there(table, "inside")
    pairs = [_pair(each) for each in table.tables("pair")]
    table.end()
    if not layers and not hosts:
        raise UsageError(f"{name}: the file has neither a [[layer]] nor a [[host]]")
    if not hosts and (between or inside or pairs):
        raise UsageError(f"{name}: the file has links, but no [[host]]")
    try:
        profile = Profile(layers=tuple(layers), parameter_copies=copies) if layers else None
        cluster = None
        if hosts:
            cluster = Cluster(
                hosts=tuple(hosts), between=between, pairs=tuple(pairs), inside=inside
            )
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from None
    return Model(profile=profile, cluster=cluster)


def format_profile(profile: Profile) -> str:
    """Format a profile as JSON, which `parse_model` reads back; times are rounded up to ns."""
    layers = [
        {
            "name": each.name,
            "forward": _time(each.forward_ps),
            "backward_input": _time(each.backward_input_ps),
            "backward_weight": _time(each.backward_weight_ps),
            "output": format_bytes(each.output_bytes),
            "parameters": format_bytes(each.parameter_bytes),
            "activation": format_bytes(each.activation_bytes),
        }
        for each in profile.layers
    ]
    found = {"parameter_copies": profile.parameter_copies, "layer": layers}
    return json.dumps(found, indent=1) + "\n"


def _json(content: str, name: str) -> Table:
    try:
        found = json.loads(content)
    except json.JSONDecodeError as error:
        raise UsageError(f"{name} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{name} must be a JSON object, not {content.strip()[:40]!r}")
    return Table(name, found)


def _layer(table: Table, number: int) -> Layer:
    found = Layer(
        name=table.take("name", text, str(number)),
        forward_ps=table.take("forward", duration_ps),
        backward_input_ps=table.take("backward_input", duration_ps),
        backward_weight_ps=table.take("backward_weight", duration_ps),
        output_bytes=table.take("output", size),
        parameter_bytes=table.take("parameters", size),
        activation_bytes=table.take("activation", size),
    )
    table.end()
    return found


def _host(table: Table) -> Host:
    found = Host(
        name=table.take("name", text),
        devices=table.take("devices", _positive, 1),
        speed=table.take("speed", _speed, Fraction(1)),
        memory_bytes=table.take_if_there("memory", size),
    )
    table.end()
    return found


def _link(table: Table) -> Link:
    found = Link(
        rate_bps=table.take("rate", _rate), latency_ps=table.take("latency", duration_ps, 0)
    )
    table.end()
    return found


def _link_if_there(table: Table, key: str) -> Link | None:
    there = key in table
    found = table.table(key)
    return _link(found) if there else None


def _pair(table: Table) -> Pair:
    return Pair(hosts=table.take("hosts", _two), link=_link(table))


def _positive(value: Any) -> int:
    if integer(value) < 1:
        raise UsageError(f"must be a positive integer, not {value!r}")
    return integer(value)


def _speed(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UsageError(f"must be a positive number, not {value!r}")
    return Fraction(str(value))


def _rate(value: Any) -> int:
    if rate(value) < 1:
        raise UsageError(f"must be more than 0, not {value!r}")
    return rate(value)


def _two(value: Any) -> tuple[str, str]:
    names = listed(text)(value)
    if len(names) != 2:
        raise UsageError(f"must be the names of two hosts, not {value!r}")
    return names[0], names[1]


def _time(time_ps: int) -> str:
    return format_duration_ns(-(-time_ps // _PS_PER_NS))
