"""Experiments as files: what they mean, and how a mistake in one is named."""

import pytest

from slackline.errors import UsageError
from slackline.sim import read_experiment

HOSTS = '[hosts]\ncount = 2\nrate = "8Gbit"\n'
BARE = "[wire]\nheader_bytes = 0\npacket_overhead_bytes = 0\n"
COLLECTIVE = '[collective]\nplan = "ring"\nsize = "128KiB"\n'
LAYER = '[[training.layer]]\nforward = "1ms"\nbackward = "2ms"\ngradient = "0B"\n'


def test_an_experiment_is_what_its_file_says() -> None:
    text = f"""
        faults = ["link 0-1 delay 1ms"]
        {HOSTS}
        latency = "5us"
        [[host]]
        number = 1
        rate = "4Gbit"
        latency = "7us"
        cores = 3
        {BARE}
        switch = "cut-through"
        [collective]
        plan = "ring"
        size = "128KiB"
        segment = "64KiB"
    """
    read = read_experiment(text, "a.toml")
    assert read.kind == "collective"
    assert str(read.faults) == "link 0-1 delay 1ms"
    assert [host.rates_bps for host in read.fabric.hosts] == [(8 * 10**9,), (4 * 10**9,)]
    assert [host.latency_ps for host in read.fabric.hosts] == [5 * 10**6, 7 * 10**6]
    assert [host.cores for host in read.fabric.hosts] == [1, 3]
    (case,) = read.cases
    figures = case.simulate()
    # Two steps of 64 KiB at the slower host's rate, with 12 us and the fault's delay each.
    assert figures["time_ps"] == 2 * (65536 * 2000 + 12 * 10**6 + 10**9)
    assert figures["frames"] == 4
    assert figures["sent_bytes"] == (131072, 131072)


def test_hosts_may_share_cores_and_take_bytes_ahead() -> None:
    text = f"""
        {HOSTS}
        shared_cores = 1
        frame = "1ms"
        ahead = "9KiB"
        {COLLECTIVE}
    """
    read = read_experiment(text, "a.toml")
    assert read.fabric is not None
    assert read.fabric.shared_cores == 1
    assert [host.ahead_bytes for host in read.fabric.hosts] == [9 << 10] * 2
    (case,) = read.cases
    # Four segments in each of two steps cross the network, and one core serves all 32 ends.
    assert case.simulate()["time_ps"] == 32 * 10**9


def test_each_plan_of_a_list_is_a_case() -> None:
    text = HOSTS + '[collective]\nplan = ["ring", "direct"]\nsize = "64KiB"\n'
    read = read_experiment(text, "a.toml")
    assert [case.name for case in read.cases] == ["ring", "direct"]


def test_the_aggregator_has_a_host_of_its_own() -> None:
    text = HOSTS.replace("2", "3") + '[collective]\nplan = "star"\nsize = "64KiB"\n'
    read = read_experiment(text + "aggregator_host = 0\n", "a.toml")
    figures = read.cases[0].simulate()
    assert len(figures["ended_ps"]) == 2
    sent = figures["sent_bytes"]
    assert sent[0] == sent[1] + sent[2], "the aggregator sends the sum to both ranks"


def test_a_tree_has_the_nodes_of_its_virtual_ranks() -> None:
    """Three ranks have two, two and one node of eight leaves, and send each to two others."""
    hosts = HOSTS.replace("2", "3") + BARE
    collective = '[collective]\nplan = ["tree", "mesh"]\nsize = "96KiB"\n'
    tree, mesh = read_experiment(f"{hosts}{collective}virtual_ranks = 8\n", "a.toml").cases
    sent = tuple((nodes + 1) * 2 * (32 << 10) for nodes in (2, 2, 1))
    assert tree.simulate()["sent_bytes"] == sent
    assert sum(sent) == pytest.approx(1.33 * sum(mesh.simulate()["sent_bytes"]), rel=0.01)
    assert tree.simulate()["bound_ps"] <= tree.simulate()["time_ps"]


def test_a_host_that_stands_for_all_has_the_time_of_all() -> None:
    collective = '[collective]\nplan = "hierarchical"\nsize = "96KiB"\nranks_per_host = 2\n'
    hosts = HOSTS.replace("2", "3") + "cores = 2\n"
    whole = read_experiment(hosts + collective, "a.toml").cases[0].simulate()
    alike = read_experiment(hosts + collective + "alike = true\n", "a.toml").cases[0].simulate()
    assert alike["time_ps"] == whole["time_ps"]
    assert 3 * alike["frames"] == whole["frames"]
    assert alike["bound_ps"] is None


def test_training_has_a_case_for_each_plan_and_policy() -> None:
    text = (
        f'{HOSTS}cores = 2\n[training]\nplan = "ring"\npolicy = ["overlap", "after"]\nsteps = 2\n'
        + LAYER.replace("gradient", "repeat = 3\ngradient")
    )
    read = read_experiment(text, "a.toml")
    assert [case.name for case in read.cases] == ["ring, overlap", "ring, after"]
    figures = read.cases[1].simulate()
    assert figures["compute_ps"] == 9 * 10**9
    assert figures["step_ps"][0] >= 9 * 10**9


def test_times_of_one_sample_and_several_groups_are_cases_of_their_own() -> None:
    text = (
        f'{HOSTS}cores = 2\n{BARE}[training]\nplan = "ring"\npolicy = "after"\nsteps = 2\n'
        f'samples = [1, 4]\ngroup = ["0B", "1MiB"]\n{LAYER}'
    )
    read = read_experiment(text, "a.toml")
    assert [case.name for case in read.cases] == [
        "ring, after, group 0B, 1 samples",
        "ring, after, group 0B, 4 samples",
        "ring, after, group 1MiB, 1 samples",
        "ring, after, group 1MiB, 4 samples",
    ]
    figures = [case.simulate() for case in read.cases]
    assert [each["compute_ps"] for each in figures] == [3 * 10**9, 12 * 10**9] * 2
    # The layer has no gradient: a step is its computation.
    assert [each["mean_step_ps"] for each in figures] == [3 * 10**9, 12 * 10**9] * 2
    assert [each["mean_exposed_ps"] for each in figures] == [0] * 4


def test_a_launch_is_a_part_of_the_overhead_and_not_of_the_wait() -> None:
    text = (
        f'{HOSTS}cores = 2\n{BARE}[training]\nplan = "ring"\nsteps = 2\nlaunch = "7us"\n'
        + LAYER.replace("gradient", "repeat = 3\ngradient").replace('"0B"', '"8B"')
    )
    figures = read_experiment(text, "a.toml").cases[0].simulate()
    assert figures["compute_ps"] == 9 * 10**9
    assert figures["mean_overhead_ps"] == figures["mean_step_ps"] - 9 * 10**9
    assert figures["mean_overhead_ps"] == figures["mean_exposed_ps"] + 3 * 7 * 10**6


def test_each_network_is_a_case_with_its_own_faults() -> None:
    networks = """
        [[network]]
        name = "healthy"
        [[network]]
        name = "slow"
        faults = ["nic 1.0 rate 4Gbit"]
    """
    read = read_experiment(HOSTS + BARE + COLLECTIVE + networks, "a.toml")
    assert [case.name for case in read.cases] == ["ring, healthy", "ring, slow"]
    assert str(read.faults) == ""
    slow = f'faults = "nic 1.0 rate 4Gbit"\n{HOSTS}{BARE}{COLLECTIVE}'
    alone = [read_experiment(text, "a.toml") for text in (HOSTS + BARE + COLLECTIVE, slow)]
    assert [case.simulate() for case in read.cases] == [each.cases[0].simulate() for each in alone]


PIPELINE = """
[pipeline]
schedule = ["1f1b", "gpipe"]
plan = "ring"
stages = 2
microbatches = 3
forward = "1ms"
backward_input = ["1ms", "2ms"]
backward_weight = "1ms"
activation = "1KiB"
gradient = ["64KiB", "128KiB"]
"""


def test_a_pipeline_has_a_case_for_each_schedule_and_plan() -> None:
    hosts = HOSTS.replace("2", "4") + "cores = 2\n"
    read = read_experiment(
        hosts + BARE + 'switch = "cut-through"\n' + PIPELINE + "replicas = 2\n", "a.toml"
    )
    assert [case.name for case in read.cases] == ["1f1b, ring", "gpipe, ring"]
    figures = read.cases[0].simulate()
    # Stage 0 is the last to end; the two replicas exchange 64 KiB then.
    last = max(figures["pipeline_ps"])
    assert figures["makespan_ps"] == figures["reduced_ps"][0] == last + 65536 * 1000
    rest = hosts + BARE + 'switch = "cut-through"\n' + PIPELINE + 'replicas = 2\nrest = "5ms"\n'
    (with_rest, _) = read_experiment(rest, "a.toml").cases
    assert with_rest.simulate()["makespan_ps"] == figures["makespan_ps"] + 5 * 10**9
    blocks = rest.replace("rest", "sends").replace("5ms", "blocking")
    blocked = read_experiment(blocks, "a.toml").cases[0].simulate()
    # Two messages of 1 KiB hold up a computation that is ready.
    assert blocked["pipeline_ps"] == [last + 2 * 1024 * 1000] * 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("count =", "a.toml is not TOML: Invalid value (at end of document)"),
        ("", 'a.toml: [hosts] lacks "count"'),
        ("[hosts]\ncount = 2\n", 'a.toml: [hosts] lacks "rate"'),
        (
            '[hosts]\ncount = 0\nrate = "1Gbit"\n',
            "a.toml: [hosts]: count and nics must be positive, not 0 and 1",
        ),
        (
            '[hosts]\ncount = "two"\nrate = "1Gbit"\n',
            "a.toml: [hosts] count: must be an integer of at least 0, not 'two'",
        ),
        (
            "[hosts]\ncount = 2\nrate = 100\n",
            "a.toml: [hosts] rate: must be text, not 100",
        ),
        (
            '[hosts]\ncount = 2\nrate = "1Gb"\n',
            "a.toml: [hosts] rate: a rate must be a number and one of bit, kbit, Mbit, Gbit, "
            "Tbit, not '1Gb'",
        ),
        (
            f"{HOSTS}core = 2\n{COLLECTIVE}",
            'a.toml: [hosts] does not take the key "core"; it takes '
            "count, nics, rate, shared_cores, latency, cores, frame, "
            "reduce_bytes_per_second, memory_bytes_per_second, memory_latency, burst, ahead",
        ),
        (
            '[hosts]\ncount = 2\nrate = "0bit"\n',
            "a.toml: [hosts]: the rate of a NIC must be positive, not 0",
        ),
        (
            f'{HOSTS}reduce_bytes_per_second = "0B"\n',
            "a.toml: [hosts]: reduce_bytes_per_second must be positive, not 0",
        ),
        (
            f'faults = "link 0-1 loss 1%"\n{HOSTS}{COLLECTIVE}[[network]]\nname = "b"\n',
            "a.toml: [network 0]: the file has networks: move its faults into each network",
        ),
        (
            f'{HOSTS}{COLLECTIVE}[[network]]\nname = "b"\n[[network]]\nname = "b"\n',
            'a.toml: [network 1]: there are two networks of the name "b"',
        ),
        (
            f'{HOSTS}{COLLECTIVE}[[network]]\nname = "b"\nfaults = "nic 2.0 down"\n',
            "a.toml: network \"b\": faults: there is no host 2 for 'nic 2.0 down': there are 2",
        ),
        (
            f"{HOSTS}{COLLECTIVE}[[network]]\n",
            'a.toml: [network 0] lacks "name"',
        ),
        (
            f"{HOSTS}cores = 0\n{COLLECTIVE}",
            "a.toml: [hosts]: cores must be positive, not 0",
        ),
        (
            f"{HOSTS}[[host]]\nnumber = 2\n{COLLECTIVE}",
            "a.toml: [host 0]: there is no host 2: there are 2",
        ),
        (
            f'{HOSTS}[[host]]\nnumber = 1\nrate = ["1Gbit", "1Gbit"]\n{COLLECTIVE}',
            "a.toml: [host 0]: rate must have one value or 1, not 2",
        ),
        (
            f'{HOSTS}[wire]\nswitch = "wet"\n{COLLECTIVE}',
            "a.toml: [wire] switch: must be one of cut-through, ethernet, store-and-forward, "
            "not 'wet'",
        ),
        (
            HOSTS,
            "a.toml: one of [collective], [training], [pipeline], [iteration], [job], [node] is "
            "needed, not none",
        ),
        (
            f"{HOSTS}{COLLECTIVE}[training]\n",
            "a.toml: one of [collective], [training], [pipeline], [iteration], [job], [node] is "
            "needed, not [collective] and [training]",
        ),
        (
            f'{HOSTS}[collective]\nplan = "rink"\nsize = "1KiB"\n',
            'a.toml: [collective]: all_reduce has no plan "rink"; its plans are direct, mesh, '
            "ring, reduce-broadcast, halving-doubling, torus, flat-tree, star, hierarchical",
        ),
        (
            f'{HOSTS}[collective]\nplan = "star"\nsize = "1KiB"\n',
            'a.toml: [collective]: the plan "star" needs an aggregator_host',
        ),
        (
            f"{HOSTS}{COLLECTIVE}rank_hosts = [0, 2]\n",
            "a.toml: [collective]: there is no host 2: there are 2",
        ),
        (
            f'{HOSTS}[collective]\nplan = "ring"\nsize = "6B"\n',
            "a.toml: [collective]: 6 bytes are not a whole number of elements of 4",
        ),
        (
            f"{HOSTS}{COLLECTIVE}alike = 1\n",
            "a.toml: [collective] alike: must be true or false, not 1",
        ),
        (
            f"{HOSTS}{COLLECTIVE}alike = true\nrank_hosts = [0, 1]\n",
            "a.toml: [collective]: alike needs equal hosts, and neither faults, rank_hosts nor "
            "aggregator_host",
        ),
        (
            f"{HOSTS}{COLLECTIVE.replace('ring', 'torus')}alike = true\n",
            "a.toml: [collective]: the ranks of all_reduce torus, 2 ranks are not alike; plans "
            "with alike ranks: direct, hierarchical, mesh, ring",
        ),
        (
            f"{HOSTS}{COLLECTIVE.replace('ring', 'hierarchical')}ranks_per_host = 2\n"
            "rank_hosts = [0, 1, 0, 1]\n",
            "a.toml: [collective]: hierarchical needs 2 ranks on each host, not [0, 1, 0, 1]",
        ),
        (
            f"{HOSTS}{COLLECTIVE.replace('ring', 'tree')}",
            'a.toml: [collective]: the plan "tree" needs virtual_ranks',
        ),
        (
            f"{HOSTS}{COLLECTIVE.replace('ring', 'tree')}virtual_ranks = 1\n",
            "a.toml: [collective]: 1 leaves cannot be given to 2 ranks, one or more to each",
        ),
        (
            f'{HOSTS}{COLLECTIVE.replace("ring", "tree")}virtual_ranks = 8\nname = "reduce"\n',
            'a.toml: [collective]: the plan "tree" is one of all_reduce, not of reduce',
        ),
        (
            f"{HOSTS}{COLLECTIVE}ranks_per_host = 0\n",
            "a.toml: [collective]: there are no ranks: ranks_per_host is 0, aggregator_host None",
        ),
        (
            f"{HOSTS}{COLLECTIVE}speed = 1\n",
            'a.toml: [collective] does not take the key "speed"; it takes '
            "aggregator_host, ranks_per_host, "
            "rank_hosts, alike, flows, name, plan, root, itemsize, segment, onset, virtual_ranks, "
            "size",
        ),
        (
            f"speed = 1\n{HOSTS}{COLLECTIVE}",
            'a.toml: the file does not take the key "speed"; it takes '
            "faults, network, hosts, host, wire, "
            "collective",
        ),
        (
            f'faults = "link 0-5 down"\n{HOSTS}{COLLECTIVE}',
            "a.toml: faults: there is no host 5 for 'link 0-5 down': there are 2",
        ),
        (
            f"{HOSTS}{PIPELINE}replicas = 2\n",
            "a.toml: [pipeline]: 1f1b with 2 replicas needs 4 ranks, rank_hosts has 2",
        ),
        (
            f"{HOSTS}{PIPELINE.replace('stages = 2', 'stages = 3')}",
            "a.toml: [pipeline]: backward_input must have one value or 3, not 2",
        ),
        (
            f"{HOSTS}{PIPELINE.replace('1f1b', '1f2b')}",
            "a.toml: [pipeline] schedule: must be one of auto, ready, slack, adaptra, gpipe, "
            "1f1b, zb-h1, zb-h2, zero-bubble, interleaved, zb-v, dualpipe-v, not '1f2b'",
        ),
        (
            f'{HOSTS}[training]\nplan = "ring"\n',
            "a.toml: [training]: at least one [[training.layer]] is needed",
        ),
        (
            f'{HOSTS}[training]\nplan = "ring"\nsteps = 1\n{LAYER}',
            "a.toml: [training]: steps must be at least 2, not 1",
        ),
        (
            f'{HOSTS}[training]\nplan = "ring"\n{LAYER}forwards = 1\n',
            'a.toml: [training.layer 0] does not take the key "forwards"; it takes '
            "forward, backward, gradient, "
            "optimizer, repeat",
        ),
    ],
)
def test_a_mistake_is_named_with_file_table_and_key(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_experiment(text, "a.toml")
    assert str(raised.value) == said


def test_a_fault_that_cannot_be_read_shows_the_grammar() -> None:
    with pytest.raises(UsageError) as raised:
        read_experiment(f'faults = "link 0-1 dela 1ms"\n{HOSTS}{COLLECTIVE}', "a.toml")
    said = "a.toml: faults: cannot read the fault 'link 0-1 dela 1ms': 'dela' is none of"
    assert str(raised.value).startswith(said)
