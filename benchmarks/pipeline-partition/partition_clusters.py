"""Models and mixed clusters from a seed, in the form of the files of `slackline plan pipeline`.

A model is even (a transformer with a heavier head), narrowing (early layers have large outputs, as
in a convolutional network) or uneven (drawn times). Hosts differ in speed, memory, number of
devices and links.
"""

from __future__ import annotations

from random import Random
from typing import Any

from slackline.units import format_bytes, format_duration_ns, parse_bytes

SEED, CASES = 20_261, 20
"""The first seed, and the number of clusters."""
US, MIB, GIB = 1_000, 1 << 20, 1 << 30
COPIES = 4
"""The weights, the gradients and two moments of the optimizer."""


def draw(seed: int) -> tuple[dict[str, Any], int, int]:
    """Return a model with its cluster, the number of stages and the number of microbatches.

    There is a stage for each device. Memory is drawn, then doubled until an even cut with the
    activations of 1F1B fits.
    """
    random = Random(seed)
    hosts = _hosts(random, random.randint(2, 4), 4)
    stages = sum(host["devices"] for host in hosts)
    layers = _layers(random, random.randint(3 * stages, 6 * stages))
    return _model(random, layers, hosts, stages), stages, stages * random.randint(2, 4)


def draw_small(seed: int) -> tuple[dict[str, Any], int, int]:
    """Return a case of at most 8 layers and 4 devices, small enough for an exhaustive search."""
    random = Random(seed)
    hosts = _hosts(random, random.randint(2, 3), 2)
    stages = min(4, sum(host["devices"] for host in hosts))
    layers = _layers(random, random.randint(stages + 2, 8))
    return _model(random, layers, hosts, stages), stages, random.randint(stages, 2 * stages)


def _hosts(random: Random, count: int, most: int) -> list[dict[str, Any]]:
    speeds = random.sample((0.4, 0.6, 0.8, 1, 1.5, 2), count)
    return [
        {
            "name": "abcd"[number],
            "devices": random.randint(1, most),
            "speed": speed,
            "memory": random.choice((16, 24, 40, 80)) * GIB,
        }
        for number, speed in enumerate(speeds)
    ]


def _layers(random: Random, count: int) -> list[dict[str, Any]]:
    kind = random.choice(("even", "narrowing", "uneven"))
    base, output = random.randint(1_000, 6_000), random.randint(2, 24)
    found: list[dict[str, Any]] = []
    for number in range(count):
        forward, out, parameters = base, output * MIB, 8 * base * 1024
        if kind == "even" and number == count - 1:
            forward, parameters = 3 * base, 3 * parameters
        elif kind == "narrowing":
            depth = number / count
            forward = int(base * (1.6 - 1.2 * depth))
            out, parameters = int(out * 4 / (1 + 3 * depth)), int(parameters * (0.2 + 2 * depth))
        elif kind == "uneven":
            forward = int(base * random.uniform(0.3, 2.5))
        found.append(
            {
                "name": f"{kind} {number}",
                "forward": format_duration_ns(forward * US),
                "backward_input": format_duration_ns(int(forward * random.uniform(0.9, 1.2)) * US),
                "backward_weight": format_duration_ns(int(forward * random.uniform(0.7, 1)) * US),
                "output": format_bytes(out),
                "parameters": format_bytes(parameters),
                "activation": format_bytes(4 * out),
            }
        )
    return found


def _model(
    random: Random, layers: list[dict[str, Any]], hosts: list[dict[str, Any]], stages: int
) -> dict[str, Any]:
    while not _fits(layers, hosts, stages):
        for host in hosts:
            host["memory"] = 2 * host["memory"]
    names = [host["name"] for host in hosts]
    pairs = [
        {
            "hosts": [above, below],
            "rate": random.choice(("10Gbit", "25Gbit", "100Gbit")),
            "latency": random.choice(("20us", "200us", "2ms", "8ms")),
        }
        for place, above in enumerate(names)
        for below in names[place + 1 :]
    ]
    return {
        "parameter_copies": COPIES,
        "layer": layers,
        "host": [{**host, "memory": format_bytes(host["memory"])} for host in hosts],
        "inside": {"rate": "400Gbit", "latency": "5us"},
        "pair": pairs,
    }


def _fits(layers: list[dict[str, Any]], hosts: list[dict[str, Any]], stages: int) -> bool:
    """Return whether a stage of the most layers fits each host, with `stages` activations."""
    most = -(-len(layers) // stages)
    sizes = [
        (parse_bytes(layer["parameters"]), parse_bytes(layer["activation"])) for layer in layers
    ]
    needs = [
        sum(COPIES * parameters + stages * activation for parameters, activation in part)
        for part in (sizes[start : start + most] for start in range(len(layers)))
    ]
    return max(needs) <= min(host["memory"] for host in hosts)
