"""Tests of the group's properties that torch queries, and of the engine that all groups share."""

import threading
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from slackline.backend import Context
from slackline.backend._served import MixedGroup
from slackline.backend._torch import BackendOptions
from slackline.errors import PeerError, UsageError
from slackline.nic import NicOptions
from slackline.testing import LoopbackFabric, LoopbackNic


def options(size=1, rank=0):
    opts = BackendOptions()
    opts.store = dist.HashStore()
    opts.group_rank = rank
    opts.group_size = size
    opts.timeout = timedelta(seconds=5)
    return opts


class Engines:
    """A factory that opens loopback engines and remembers them."""

    def __init__(self):
        self.opened = []

    def __call__(self, options):
        self.opened.append(LoopbackNic())
        return self.opened[-1]


def test_a_group_knows_its_names_in_both_spellings(ranks):
    def rank_main(group):
        group._set_group_name("seven")
        group.setGroupDesc("of nine")
        assert group.group_name == group.getGroupName() == "seven"
        assert group.group_desc == group.getGroupDesc() == "of nine"
        assert group.name() == group.getBackendName() == group._get_backend_name() == "slackline"
        assert torch.device("cpu") in group._device_types
        assert group._get_backend(torch.device("cpu")) is group
        assert group.options._timeout == timedelta(seconds=20)
        return group.rank(), group.size()

    assert ranks(2, rank_main) == [(0, 2), (1, 2)]


def test_a_backend_for_an_unknown_device_is_refused_as_torch_does(ranks):
    def rank_main(group):
        with pytest.raises(RuntimeError, match="No backend type associated with device type xpu"):
            group._get_backend(torch.device("xpu"))

    ranks(1, rank_main)


def test_one_engine_serves_all_groups_and_goes_with_the_last():
    engines = Engines()
    create = Context(engines)
    groups = [create(options()) for _ in range(3)]
    assert len(engines.opened) == 1
    for group in groups[:2]:
        group.shutdown()
    assert not engines.opened[0].closed
    groups[2].abort()
    assert engines.opened[0].closed


def test_after_the_last_group_a_new_one_opens_a_new_engine():
    engines = Engines()
    create = Context(engines)
    for _ in range(2):
        group = create(options())
        dist.all_reduce(torch.ones(1), group=group)
        group.shutdown()
    assert [engine.closed for engine in engines.opened] == [True, True]


def test_a_group_that_cannot_be_opened_leaves_no_engine_behind():
    engines = Engines()
    create = Context(engines)
    with pytest.raises(UsageError, match="a fabric must have at least one rank, not 0"):
        create(options(size=0))
    assert engines.opened[0].closed


def test_a_later_group_cannot_ask_for_other_options():
    create = Context(Engines())
    group = create(options(), NicOptions(plan="ring"))
    create(options(), NicOptions(plan="ring")).shutdown()
    with pytest.raises(
        UsageError, match=r"^the engine runs with .*; a later group cannot ask for "
    ):
        create(options(), NicOptions(plan="mesh"))
    group.shutdown()


class Clock:
    """A clock that only stuck operations move."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s


@pytest.mark.parametrize("interrupted", [False, True])
def test_all_groups_share_one_limit_at_the_end_of_the_process(monkeypatch, interrupted):
    clock, engines = Clock(), Engines()
    monkeypatch.setattr("slackline.backend._context.time", clock)
    monkeypatch.setattr("threading.excepthook", threading.excepthook)
    context = Context(engines)
    groups = [context(options()) for _ in range(50)]
    closed = []

    def close(timeout=None):
        if timeout is None:
            return  # the engine's own end, after that of its groups
        closed.append(timeout)
        clock.now_s += timeout.total_seconds()  # operations of the group never end
        if interrupted and len(closed) == 1:
            raise KeyboardInterrupt

    for group in groups:
        monkeypatch.setattr(group.nic, "close", close)
    context._end_of_process()
    assert len(closed) == 50
    assert clock.now_s == 3.0
    assert context.open_groups() == []
    with pytest.raises(UsageError, match="no open group"):
        context.recorder()


def test_a_daemon_thread_whose_operation_fails_at_the_end_of_the_process_prints_nothing(
    monkeypatch,
):
    shown = []
    monkeypatch.setattr("threading.excepthook", lambda args: shown.append(args.exc_type))
    Context(Engines())._end_of_process()

    def fail(error):
        raise error

    for error, daemon in ((PeerError("gone"), True), (KeyError(1), True), (PeerError("x"), False)):
        thread = threading.Thread(target=fail, args=(error,), daemon=daemon)
        thread.start()
        thread.join()
    assert shown == [KeyError, PeerError]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda group: group.split_group([0]),
            r"a group with several backends \(cpu\) cannot be split: call "
            r"torch.distributed.new_group\(\[0\]\)",
        ),
        (
            lambda group: group.merge_remote_group(dist.HashStore(), 2),
            r"a group with several backends \(cpu\) cannot be merged: call init_process_group "
            "with the store and world_size=2",
        ),
    ],
)
def test_a_group_with_backends_of_other_devices_makes_no_other_groups(make, message):
    fabric = LoopbackFabric(1)
    others = dist.ProcessGroup(dist.HashStore(), 0, 1)
    group = MixedGroup(fabric.groups[0], dist.HashStore(), lambda: None, others)
    with pytest.raises(UsageError, match=message):
        make(group)


@pytest.mark.parametrize("ranks", [[], [0, 0], [1], [-1]])
def test_a_split_takes_different_ranks_of_the_group(ranks):
    group = Context(Engines())(options())
    with pytest.raises(UsageError, match="the ranks of a split must be "):
        group.split_group(ranks)
    group.shutdown()
    with pytest.raises(UsageError, match="only an open group"):
        group.split_group([0])


def test_a_store_serves_for_one_merged_group():
    group, store = Context(Engines())(options()), dist.HashStore()
    assert group.merge_remote_group(store, 1).size() == 1
    with pytest.raises(UsageError, match="2 processes have come to a merged group of 1"):
        group.merge_remote_group(store, 1)


def test_a_timeout_that_torch_cannot_hold_is_refused_with_a_longest_one():
    opts = options()
    opts.timeout = timedelta.max
    with pytest.raises(
        UsageError, match=r"torch turns timedelta\.max into this value: give 36,500"
    ):
        Context(Engines())(opts)


@pytest.mark.parametrize("timeout", ["soon", 0.0, float("nan"), 3, None])
def test_a_timeout_is_a_positive_length_of_time(ranks, timeout):
    def rank_main(group):
        with pytest.raises(UsageError, match=rf"a positive datetime\.timedelta, not {timeout!r}"):
            group.set_timeout(timeout)
        group.set_timeout(1e300)
        assert group.default_timeout == timedelta(days=36_500)

    ranks(1, rank_main)
