"""Gradients on an accelerator made of threads, reduced by key over the real engine."""

import ctypes
import sys
import threading
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch import nn
from waiting import until

from slackline.backend.operations._staging import GroupStaging
from slackline.errors import PeerError
from slackline.overlap import DataParallel
from slackline.overlap.exchange._interface import NicExchange
from slackline.overlap.exchange._staged import StagedExchange
from slackline.testing import run_ranks
from slackline.testing.thread_device import HostDevice, ThreadDevice

KEYS = 32
BF16 = torch.bfloat16


def staged(size, body, *, device=ThreadDevice, communicate=None, timeout=20):
    """Run `body(exchange, device)` on each rank; check that nothing stays pinned."""

    def run(group):
        made, staging = device(), GroupStaging()
        exchange = StagedExchange(
            group, KEYS, device=made, staging=staging, communicate=communicate
        )
        try:
            return body(exchange, made)
        finally:
            staging.close()
            exchange.release()
            made.close()
            assert made.pinned == {}

    return run_ranks(size, run, timeout=timedelta(seconds=timeout))


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_post_gradients_in_any_order_and_use_them_on_the_device(size, average):
    counts = [3, 100_000, 1, 7000]

    def body(exchange, device):
        me = exchange.rank
        flats = exchange.allocate([(count, torch.float32) for count in counts])
        reductions = [
            exchange.reduction(key, flat, average=average) for key, flat in enumerate(flats)
        ]
        for step in range(3):
            for key, flat in enumerate(flats):
                device.current.launch(partial(flat.fill_, me + key + step))
            order = [(key * 3 + me) % len(flats) for key in range(len(flats))]
            pending = {key: reductions[key](priority=key) for key in order}
            for key in sorted(pending):
                pending[key].wait()
            doubled = [torch.empty_like(flat) for flat in flats]
            for flat, twice in zip(flats, doubled, strict=True):
                device.current.launch(partial(torch.mul, flat, 2, out=twice))
            device.synchronize()
            for key, twice in enumerate(doubled):
                total = torch.tensor(float(sum(rank + key + step for rank in range(size))))
                assert twice.unique().tolist() == [2 * (total / size if average else total)]
            # The thread that learns of the end may come later than the device.
            until(
                lambda pending=pending: all(
                    each.done() and each.ended_ns > 0 for each in pending.values()
                ),
                "a reduction has not ended",
            )

    staged(size, body)


def test_a_wait_holds_the_stream_and_not_the_host():
    """Rank 1 posts only when the host of rank 0 is past its wait."""
    past = threading.Event()

    def body(exchange, device):
        (flat,) = exchange.allocate([(1000, torch.float32)])
        device.current.launch(lambda: flat.fill_(exchange.rank + 1.0))
        if exchange.rank == 1:
            assert past.wait(60)
        pending = exchange.reduction(0, flat, average=False)(0)
        pending.wait()
        past.set()
        device.synchronize()
        return flat.unique().tolist()

    assert staged(2, body) == [[3.0]] * 2


def test_the_engine_opens_a_gate_while_a_thread_of_python_keeps_all_others_waiting():
    """Rank 1 posts, and then lets no other thread run until the gate of rank 0 is open."""
    gates: list[object] = []
    placed = threading.Event()

    class Noting(ThreadDevice):
        def gate(self):
            gates.append(super().gate())
            return gates[-1]

    def body(exchange, device):
        (flat,) = exchange.allocate([(8_000_000, torch.float32)])  # takes tens of milliseconds
        device.current.launch(lambda: flat.fill_(exchange.rank + 1.0))
        opened = True
        if exchange.rank == 1:
            assert placed.wait(60)
        pending = exchange.reduction(0, flat, average=False)(0)
        if exchange.rank == 1:
            device.departures.wait_unless(lambda: False)
            opened = _opens_meanwhile(gates[0], limit_s=20)
        pending.wait()
        placed.set()
        device.synchronize()
        return opened, flat.unique().tolist()

    assert staged(2, body, device=Noting, timeout=60) == [(True, [3.0])] * 2


def _opens_meanwhile(gate, *, limit_s):
    """Return whether a gate opens while this thread keeps the interpreter to itself."""
    address, value = gate.place
    word = ctypes.c_uint32.from_address(address)
    usual_s, until_s = sys.getswitchinterval(), time.monotonic() + limit_s
    sys.setswitchinterval(10 * limit_s)
    try:
        while word.value != value and time.monotonic() < until_s:
            pass
        return word.value == value
    finally:
        sys.setswitchinterval(usual_s)


def test_groups_of_gradients_are_laid_out_anew_on_the_same_memory():
    def body(exchange, device):
        first = exchange.allocate([(5, torch.float32), (70, torch.float32), (9, torch.float32)])
        turned = exchange.rearrange([first[2], first[0], first[1]])
        whole = exchange.span(turned[0], turned[1])
        device.current.launch(lambda: [flat.fill_(1 + i) for i, flat in enumerate(turned)])
        exchange.reduction(0, whole, average=False)(0).wait()
        device.synchronize()
        return [flat.unique().tolist() for flat in turned]

    assert staged(2, body) == [[[2.0], [4.0], [3.0]]] * 2


def test_gradients_travel_as_bf16_with_the_bits_of_gradients_on_the_host():
    def values(rank):
        return torch.randn(5000, generator=torch.Generator().manual_seed(rank))

    def body(exchange, device):
        (flat,) = exchange.allocate([(5000, torch.float32)])
        flat.copy_(values(exchange.rank))
        assert exchange.sent_bytes(flat) == 10_000
        exchange.reduction(0, flat, average=True)(0).wait()
        device.synchronize()
        result = flat.clone()
        flat.fill_(1 + 2**-20)
        exchange.reduction(1, flat, average=True, exact=True)(0).wait()
        device.synchronize()
        assert flat.eq(1 + 2**-20).all()
        return result

    def on_host(group):
        exchange = NicExchange(group, KEYS, communicate=BF16)
        (flat,) = exchange.allocate([(5000, torch.float32)])
        flat.copy_(values(group.rank))
        exchange.reduction(0, flat, average=True)(0).wait()
        result = flat.clone()
        exchange.release()
        return result

    for found, expected in zip(
        staged(3, body, communicate=BF16), run_ranks(3, on_host), strict=True
    ):
        assert torch.equal(found, expected)


def test_a_reduction_that_fails_opens_its_gate_and_the_next_one_raises_the_error():
    posted = threading.Event()

    def body(exchange, device):
        if exchange.rank == 1:
            assert posted.wait(60)
            exchange._group.abort("rank 1 gives up")
            return None
        (flat,) = exchange.allocate([(100_000, torch.float32)])
        reduce = exchange.reduction(0, flat, average=False)
        pending = reduce(0)
        pending.wait()
        posted.set()
        device.synchronize()  # The stream goes on.
        with pytest.raises(PeerError, match="rank 1 gives up"):
            reduce(0)
        return flat.isnan().all().item()

    assert staged(2, body)[0] is True


def test_values_are_broadcast_from_the_device():
    def body(exchange, device):
        tensors = [torch.full((3, 4), exchange.rank + 1.0), torch.empty(0), torch.ones(2).to(BF16)]
        device.current.launch(lambda: tensors[2].add_(exchange.rank))
        exchange.broadcast(tensors)
        device.synchronize()
        return [tensor.unique().tolist() for tensor in tensors]

    assert staged(3, body) == [[[1.0], [], [1.0]]] * 3


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(20, 300), nn.Linear(300, 5)
        self.norm = nn.BatchNorm1d(300)
        self.seldom = nn.Linear(300, 5)
        self.step = 0

    def forward(self, x):
        hidden = self.norm(self.first(x)).relu()
        self.step += 1
        return self.last(hidden) + (self.seldom(hidden) if self.step % 3 == 0 else 0)


@pytest.mark.parametrize("group_bytes", [0, 1 << 20])
def test_a_model_trains_to_the_same_bits_as_on_the_host(monkeypatch, group_bytes):
    own = threading.local()
    monkeypatch.setattr(
        "slackline.overlap._data_parallel.open_exchange", lambda *_, **__: own.exchange
    )
    making = threading.Lock()

    def train(exchange):
        own.exchange = exchange
        with making:  # The generator of random numbers belongs to all threads.
            torch.manual_seed(1)
            module = Model()
        model = DataParallel(module, group_bytes=group_bytes)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model.attach(optimizer)
        for step in range(7):
            optimizer.zero_grad()
            seed = step * exchange.size + exchange.rank
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(seed))
            model(x).square().mean().backward()
            optimizer.step()
        model.synchronize()
        result = [parameter.detach().clone() for parameter in model.parameters()]
        model.close()
        return result

    def on_device(exchange, device):
        return train(exchange)

    def on_host(group):
        return train(NicExchange(group, KEYS))

    both = staged(2, on_device, device=HostDevice), run_ranks(2, on_host)
    for found, expected in zip(*both, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
