"""Tests of callbacks that post operations: matched by their place, and started in order.

All tensors have the same shape, so operations that are matched wrongly give wrong sums and no
error.
"""

import random
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch.futures import collect_all

from slackline.backend.operations._callbacks import GroupIdentity, Origin
from slackline.errors import TimeoutError
from slackline.nic import CALLBACK_TAGS

LIMIT_S = 20.0


def named(groups):
    """Name the groups as all ranks know them, and return them."""
    for index, group in enumerate(groups):
        group._set_group_name(f"group {index}")
    return groups


def post(group, value):
    """Post an all_reduce of `value` times the rank's number from 1 on; return its Work."""
    return dist.all_reduce(torch.tensor([value * (group.rank() + 1.0)]), group=group, async_op=True)


def value_of(future):
    return future.value()[0].item()


def test_operations_of_callbacks_are_matched_by_their_place(ranks):
    def rank_main(group):
        if group.rank() == 0:
            first = post(group, 1)
            first.wait()  # the callback runs at once, before the second operation
            late = first.get_future().then(lambda _: post(group, 10).get_future().wait()[0].item())
            second = post(group, 100)
        else:
            # The first operation ends with rank 0's first post at the earliest, and the second
            # one is posted before.
            first = post(group, 1)
            late = first.get_future().then(lambda _: post(group, 10).get_future().wait()[0].item())
            second = post(group, 100)
        second.wait()
        return late.wait(), second.result()[0].item()

    for _ in range(20):
        assert ranks(2, rank_main) == [(30.0, 300.0)] * 2


def test_callbacks_start_in_the_order_of_the_posts(ranks):
    def rank_main(group):
        begun = []
        if group.rank() == 1:
            group.recv([torch.empty(1)], 0, 9).wait()
            for tag in (3, 2, 1):
                group.send([torch.ones(1)], 0, tag).wait()
            return None
        futures = {tag: group.recv([torch.empty(1)], 1, tag).get_future() for tag in (1, 2, 3)}
        ends = [
            futures[tag].then(lambda _, tag=tag: begun.append((tag, threading.get_ident())))
            for tag in (3, 1, 2)
        ]
        group.send([torch.ones(1)], 1, 9).wait()
        for end in ends:
            end.wait()
        return begun

    for _ in range(20):
        begun = ranks(2, rank_main)[0]
        assert [tag for tag, _ in begun] == [1, 2, 3]
        assert len({thread for _, thread in begun}) == 1


def send_when_told(group, values):
    """Send rank 0 the values with the tags 1, 2 and so on, as soon as rank 0 asks for them."""
    group.recv([torch.empty(1)], 0, 9).wait()
    for tag, value in enumerate(values, 1):
        group.send([torch.tensor([value])], 0, tag).wait()


def receive(group, tag):
    return group.recv([torch.empty(1)], 1, tag).get_future()


def test_a_callback_may_wait_for_newer_operations_and_their_callbacks(ranks):
    def rank_main(group):
        if group.rank() == 1:
            send_when_told(group, [1.0, 10.0, 100.0])
            return None
        futures = [receive(group, tag) for tag in (1, 2, 3)]
        ends = []

        def wait_for_newer(future):
            return value_of(future) + futures[1].wait()[0].item() + ends[1].wait()

        ends.append(futures[0].then(wait_for_newer))
        ends.append(futures[2].then(value_of))
        group.send([torch.ones(1)], 1, 9).wait()
        return ends[0].wait()

    assert ranks(2, rank_main)[0] == 111.0


def test_a_callback_may_wait_for_the_callback_of_its_own_operation(ranks):
    def rank_main(group):
        def again(future):
            inner = post(group, 10).get_future().then(value_of)
            synchronous = torch.tensor([100.0])
            dist.all_reduce(synchronous, group=group)
            return value_of(future) + inner.wait() + synchronous.item()

        return post(group, 1).get_future().then(again).wait()

    assert ranks(2, rank_main) == [233.0] * 2


def test_a_callback_that_waits_for_one_beneath_it_gets_an_error(ranks):
    def rank_main(group):
        if group.rank() == 1:
            send_when_told(group, [1.0, 10.0])
            return
        ends = []
        ends.append(receive(group, 1).then(lambda _: ends[1].wait()))
        ends.append(receive(group, 2).then(lambda _: ends[0].wait()))
        group.send([torch.ones(1)], 1, 9).wait()
        for end in ends:
            with pytest.raises(RuntimeError, match=r"callback m2\.c0 waits for callback m1\.c0"):
                end.wait()

    ranks(2, rank_main)


def test_each_callback_posts_the_next_operation_a_thousand_times(ranks):
    def rank_main(group):
        values = []
        done = threading.Event()

        def on(future):
            values.append(value_of(future))
            if len(values) == 1000:
                done.set()
            else:
                post(group, len(values)).get_future().then(on)

        post(group, 0).get_future().then(on)
        assert done.wait(LIMIT_S)
        return values

    assert ranks(2, rank_main) == [[3.0 * number for number in range(1000)]] * 2


def test_an_operation_on_another_group_is_matched_by_the_callbacks_group(ranks):
    def rank_main(*groups):
        inner, outer = named(groups)
        ends = [
            post(group, value).get_future().then(lambda _, v=value: post(outer, v * 10).wait())
            for group, value in ((inner, 1), (outer, 2))
        ]
        totals = []
        futures = [
            group_future.then(lambda _, v=v: post(outer, v).get_future().wait()[0].item())
            for v, group_future in zip((100, 200), ends, strict=True)
        ]
        totals.extend(future.wait() for future in futures)
        return totals

    for _ in range(20):
        assert ranks(2, rank_main, groups=2) == [[300.0, 600.0]] * 2


def test_a_rank_that_posts_nothing_in_its_callback_is_told_by_a_timeout(ranks):
    def rank_main(group):
        options = dist.AllreduceOptions()
        options.timeout = timedelta(seconds=0.2)
        options.asyncOp = True

        def maybe(_):
            return group.allreduce([torch.ones(1)], options) if group.rank() == 0 else None

        end = post(group, 1).get_future().then(maybe)
        later = post(group, 100)
        later.wait()
        if group.rank() == 0:
            with pytest.raises(TimeoutError, match=" Timed out after "):
                end.wait().wait()
            group.send([torch.ones(1)], 1, 9).wait()
        else:
            assert end.wait() is None
            group.recv([torch.empty(1)], 0, 9).wait()
        return later.result()[0].item()

    assert ranks(2, rank_main) == [300.0] * 2


def test_a_callback_of_a_joint_future_cannot_post(ranks):
    def rank_main(group):
        works = []
        posted = threading.Event()

        def both(_):
            posted.wait(LIMIT_S)
            post(group, 1)

        if group.rank() == 0:
            works = [group.recv([torch.empty(1)], 1, tag) for tag in (1, 2)]
            end = collect_all([work.get_future() for work in works]).then(both)
            posted.set()
            group.send([torch.ones(1)], 1, 3).wait()
            with pytest.raises(RuntimeError, match="Future that slackline did not return"):
                end.wait()
        else:
            group.recv([torch.empty(1)], 0, 3).wait()
            for tag in (1, 2):
                group.send([torch.ones(1)], 0, tag).wait()

    ranks(2, rank_main)


def test_a_callback_of_joint_results_of_callbacks_cannot_post(ranks):
    def rank_main(group):
        if group.rank() == 1:
            send_when_told(group, [1.0, 10.0])
            return
        results = [receive(group, tag).then(value_of) for tag in (1, 2)]
        end = collect_all(results).then(lambda _: post(group, 1))
        group.send([torch.ones(1)], 1, 9).wait()
        with pytest.raises(RuntimeError, match="Future that slackline did not return"):
            end.wait()

    ranks(2, rank_main)


def test_an_error_of_an_operation_reaches_its_callbacks(ranks):
    def rank_main(group):
        if group.rank() == 1:
            group.abort()
            return
        with pytest.raises(RuntimeError, match="PeerError: rank 1 has closed "):
            post(group, 1).get_future().then(value_of).then(lambda future: future.wait()).wait()

    ranks(2, rank_main)


def test_tags_of_callbacks_are_distinct():
    group, other = GroupIdentity(2), GroupIdentity(2)
    group.name, other.name = "a", "b"
    origins = []
    for number in (0, 1, 2**32 - 1):
        for message in (False, True):
            root = Origin(group, number, message)
            chains = [root.step("c", 0)]
            for _ in range(7):
                chains.append(chains[-1].step("c", 0))
            chains += [root.step("c", index) for index in range(1, 70)]
            chains += [root.step("c", index).step("c", 1) for index in range(1, 70)]
            chains += [root.step("c", 0).step("p", 0).step("c", index) for index in range(9)]
            for chain in chains:
                origins += [chain.step("p", place) for place in (0, 1, 4095, 4096, 70_000)]
    origins += [Origin(other, each.number, each.message, each.steps) for each in origins]
    tags = [origin.tag_on(group) for origin in origins]
    assert len(set(tags)) == len(tags)
    assert min(tags) >= CALLBACK_TAGS


@dataclass
class Drawn:
    """A drawn operation, with the callbacks of its Future and of these callbacks' results."""

    value: int
    group: int
    waits: bool = False
    synchronous: bool = False
    callbacks: list["Callback"] = field(default_factory=list)


@dataclass
class Callback:
    """A drawn callback: the operations that it posts, and the callbacks of its result."""

    operations: list[Drawn] = field(default_factory=list)
    next: list["Callback"] = field(default_factory=list)


class Draw:
    """A tree of operations and callbacks, equal on all ranks, from one seed."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        self._count = 0
        self.program = [self._operation(0) for _ in range(self._random.randint(2, 5))]
        self.count = self._count

    def _operation(self, depth):
        self._count += 1
        draw = self._random
        made = Drawn(self._count, draw.randrange(2), synchronous=draw.random() < 0.15)
        if not made.synchronous:
            made.waits = draw.random() < 0.3
            made.callbacks = self._callbacks(depth, draw.choice((0, 1, 1, 2)))
        return made

    def _callbacks(self, depth, count):
        if depth > 2:
            return []
        return [
            Callback(
                [self._operation(depth + 1) for _ in range(self._random.choice((0, 1, 1, 2)))],
                self._callbacks(depth + 1, self._random.choice((0, 0, 1))),
            )
            for _ in range(count)
        ]


class Player:
    """A run of a drawn program by one rank, with short sleeps that differ between the ranks."""

    def __init__(self, groups, seed):
        self._groups = groups
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._ends = []
        self.sums = {}

    def play(self, program, count):
        self._operations(program)
        deadline = time.monotonic() + LIMIT_S
        while len(self.sums) < count:  # callbacks add to the Futures that are waited for
            with self._lock:
                ends, self._ends = self._ends, []
            for end in ends:
                end.wait()
            assert time.monotonic() < deadline, f"{len(self.sums)} of {count}"
        return self.sums

    def _operations(self, operations):
        for each in operations:
            self._disturb()
            group = self._groups[each.group]
            if each.synchronous:
                tensor = torch.tensor([each.value * (group.rank() + 1.0)])
                dist.all_reduce(tensor, group=group)
                self._note(each.value, tensor.item())
                continue
            work = post(group, each.value)
            self._disturb()
            if self._random.random() < 0.3:
                work.wait()  # so that the callbacks run at once, on this rank alone
            future = work.get_future()
            self._end(future.then(lambda done, v=each.value: self._note(v, value_of(done))))
            self._callbacks(future, each.callbacks)
            if each.waits:
                future.wait()

    def _callbacks(self, future, callbacks):
        for each in callbacks:

            def call(_, each=each):
                self._disturb()
                self._operations(each.operations)

            result = future.then(call)
            self._end(result)
            self._callbacks(result, each.next)

    def _disturb(self):
        if self._random.random() < 0.3:
            time.sleep(self._random.random() / 1000)

    def _note(self, value, total):
        self.sums[value] = total

    def _end(self, future):
        with self._lock:
            self._ends.append(future)


def play_drawn(ranks, seed, size):
    drawn = Draw(seed)

    def rank_main(*groups):
        player = Player(named(groups), (seed << 8) + groups[0].rank())
        sums = player.play(drawn.program, drawn.count)
        for group in groups:
            group.shutdown()  # ends the threads of the callbacks
        return sums

    factor = size * (size + 1) / 2
    right = {value: value * factor for value in range(1, drawn.count + 1)}
    assert ranks(size, rank_main, groups=2) == [right] * size


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_drawn_trees_of_callbacks_give_the_right_sums(ranks, first):
    for seed in range(first, first + 15):
        play_drawn(ranks, seed, size=2 + seed % 2)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 200))
def test_many_drawn_trees_of_callbacks_give_the_right_sums(ranks, first):
    for seed in range(first, first + 200):
        play_drawn(ranks, seed, size=2 + seed % 3)
