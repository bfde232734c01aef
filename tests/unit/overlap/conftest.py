"""Fixtures with one rank and a group that the test controls: a reduction finishes when the test
says so."""

import ctypes
import threading
import time
from datetime import timedelta

import pytest
import torch
from torch import nn

from slackline.nic import Kind, TagAllocator
from slackline.overlap import DataParallel
from slackline.testing import LoopbackFabric
from slackline.wire import DType, ReduceOp

TYPES = {
    DType.FLOAT32: torch.float32,
    DType.FLOAT64: torch.float64,
    DType.FLOAT16: torch.float16,
    DType.BFLOAT16: torch.bfloat16,
    DType.UINT8: torch.uint8,
}


def tensor_at(address, count, dtype):
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=TYPES[dtype])


class ManualTransfer:
    """A transfer that the test completes. A wait for an unfinished transfer is recorded and
    completes it."""

    def __init__(self, group, tag, finish):
        self.tag, self.error = tag, None
        self._group, self._finish, self._done = group, finish, False

    source = None
    ended_ns = 0

    def complete(self):
        if not self._done:
            self._done = True
            if self._group is not None:
                self.ended_ns = self._group.clock()
            self._finish()

    def done(self):
        was_done = self._done
        if not was_done and self._group.hurry is not None and self._group.hurry.random() < 0.5:
            self.complete()
        return was_done

    def wait(self, timeout=None):
        if not self._done:
            self._group.waits.append(self.tag)
            self.complete()
        if self.error is not None:
            raise self.error

    def add_done_callback(self, fn):
        raise NotImplementedError


class ManualOperation:
    """A prepared operation of a ManualGroup."""

    def __init__(self, group, operation):
        self._group, self._operation = group, operation

    def post(self, **how):
        return self._group.post(self._operation, **how)


class ManualGroup:
    """A group in which the test runs rank 0 of `size`; `peers(tag, mine)` returns the sum of the
    other ranks' data."""

    def __init__(self, size=1, peers=None):
        self.rank, self.size = 0, size
        self.clock = time.monotonic_ns
        self.posts, self.waits, self.agreements = [], [], []
        self.transfers = {}
        self.immediate = False
        self.hurry = None
        """A generator of random numbers: half of the transfers end just after they are asked."""
        self.rank_ordered = True
        self.tag_allocator = TagAllocator()
        self.memory = {}
        self._peers = peers or (lambda tag, mine: mine * (size - 1))

    def prepare(self, operation):
        return ManualOperation(self, operation)

    def post(self, operation, *, priority=0, blocking=False, **_):
        if operation.kind is Kind.BROADCAST:
            return ManualTransfer(self, None, lambda: None) if self.size > 1 else DONE
        if operation.kind is Kind.ALL_GATHER:
            return self._all_gather(operation)
        assert operation.kind is Kind.ALL_REDUCE
        return self._all_reduce(operation, priority, blocking)

    def _all_reduce(self, operation, priority, blocking):
        (source,), (target,), (count,) = operation.sources, operation.targets, operation.counts
        dtype, op, tag = operation.dtype, operation.reduction, operation.tag
        assert source == target
        mine = tensor_at(source, count, dtype)
        if dtype is DType.UINT8:
            assert blocking
            assert op is ReduceOp.MAX
            self.agreements.append(mine.tolist())
            return ManualTransfer(self, tag, lambda: None)
        self.posts.append((tag, priority, count))
        sent = mine.clone()

        def finish():
            untouched = torch.equal(mine.view(torch.uint8), sent.view(torch.uint8))
            assert untouched, "the buffer was touched while it was in flight"
            total = sent + self._peers(tag, sent)
            mine.copy_(total / self.size if op is ReduceOp.AVG else total)

        transfer = ManualTransfer(self, tag, finish)
        self.transfers[tag] = transfer
        if self.immediate:
            transfer.complete()
        return transfer

    def _all_gather(self, operation):
        (source,), width = operation.sources, operation.dtype.itemsize
        for target, count in zip(operation.targets, operation.counts, strict=True):
            if target != source:
                ctypes.memmove(target, source, count * width)
        return DONE

    def allocate(self, nbytes):
        block = ctypes.create_string_buffer(nbytes + 64)
        address = -(-ctypes.addressof(block) // 64) * 64
        self.memory[address] = block
        return address

    def free(self, address):
        del self.memory[address]

    def counters(self):
        return {}

    def complete(self, *tags):
        for tag in tags or sorted(self.transfers):
            self.transfers[tag].complete()

    @property
    def tags(self):
        return [tag for tag, _, _ in self.posts]

    def forget(self):
        self.posts.clear()
        self.waits.clear()


DONE = ManualTransfer(None, None, lambda: None)
DONE.complete()


@pytest.fixture
def manual_group():
    return ManualGroup


@pytest.fixture
def wrap():
    """Provide a function that wraps a module over a group controlled by the test, and close the
    wrappers afterwards.

    Each gradient is reduced in a group of its own unless the test says otherwise.
    """
    wrapped = []

    def make(module, optimizer=None, group=None, **options):
        group = group or ManualGroup()
        if optimizer is None:
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        options.setdefault("group_bytes", 0)
        model = DataParallel(module, optimizer, process_group=group, **options)
        group.waits.clear()
        wrapped.append(model)
        return model, optimizer, group

    yield make
    for model in wrapped:
        model.close()


@pytest.fixture
def chain():
    """Return three linear layers: parameters 0 and 1, 2 and 3, 4 and 5."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.fixture
def batch():
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def ranks():
    """Provide a function that runs `function(group)` as every rank, each in a thread, and returns
    the results."""

    def run(size, function, *, expect=None):
        fabric = LoopbackFabric(size, timeout=timedelta(seconds=20))
        results, errors = [None] * size, [None] * size

        def be(rank):
            try:
                results[rank] = function(fabric.groups[rank])
            except BaseException as error:  # raised again below, in the test's thread
                errors[rank] = error
                if expect is None:
                    fabric.groups[rank].abort(f"the test failed: {error}")

        threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if expect is not None:
            assert all(isinstance(error, expect) for error in errors), errors
            return errors
        for error in errors:
            if error is not None:
                raise error
        return results

    return run
