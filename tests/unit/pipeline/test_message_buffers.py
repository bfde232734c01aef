"""Tests of the buffers of pipeline messages, on an accelerator simulated by threads."""

import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch

from slackline.pipeline._message import layout_of
from slackline.pipeline._message_buffers import MessageBuffers
from slackline.pipeline._transport import Transport
from slackline.testing import LoopbackFabric
from slackline.testing.thread_device import ThreadDevice

LIMIT = timedelta(seconds=60)
FORWARD = (1, False, 0)


@pytest.fixture
def device():
    made = ThreadDevice()
    yield made
    made.close()


def transports(device):
    """Return the transports of stage 0, on the device, and of stage 1, on another device."""
    fabric = LoopbackFabric(2)
    both = [MessageBuffers(None, each) for each in (device, ThreadDevice())]
    return both, [Transport(fabric.groups[rank], both[rank], (0, 1), 1, 1000) for rank in range(2)]


@pytest.mark.parametrize("step", [0, 1])
def test_a_message_is_stamped_when_it_is_computed_and_copied_not_when_it_is_launched(device, step):
    """Cover a body that follows its header (step 0), and both in one transfer (step 1)."""
    both, (sender, receiver) = transports(device)
    for turn in range(step + 1):
        hold, tensor = threading.Event(), torch.zeros(5)
        receiver.begin(turn, {(1, False): [0]})
        sender.begin(turn, {})
        device.current.launch(hold.wait)
        device.current.launch(lambda tensor=tensor: tensor.fill_(3))
        sender.send(FORWARD, [tensor], inline=False)
        computed_ns = time.monotonic_ns()
        hold.set()
        arrivals = []
        while not arrivals:
            arrivals = receiver.wait(LIMIT)
        (arrival,) = arrivals
        assert computed_ns <= arrival.sent_ns <= arrival.arrived_ns
        (received,) = receiver.take(FORWARD)
        both[1]._device.synchronize()
        assert received.tolist() == [3.0] * 5
    assert device.entered == {"slackline-messages"}, "the thread that posts uses the device"
    for buffers in both:
        buffers.close()
    both[1]._device.close()


def test_a_computation_waits_only_for_the_messages_that_it_takes(device):
    buffers, hold = MessageBuffers(None, device), threading.Event()
    buffer = buffers.incoming(64)
    buffer.view(torch.float32).fill_(4)
    device.landing.launch(hold.wait)
    take = buffers.land(buffer, 0, layout_of([torch.zeros(3), None], "F"))
    device.synchronize()
    (tensor, absent), seen = take(), []
    device.current.launch(lambda: seen.append(tensor.tolist()))
    assert seen == []
    hold.set()
    device.synchronize()
    assert (seen, absent) == ([[4.0] * 3], None)
    buffers.close()


def test_a_buffer_is_received_into_again_once_its_message_is_on_the_device(device):
    buffers, hold = MessageBuffers(None, device), threading.Event()
    first = buffers.incoming(64)
    layout = layout_of([torch.zeros(3)], "F")
    device.landing.launch(hold.wait)
    take = buffers.land(first, 0, layout)
    second = buffers.incoming(64)
    assert second.data_ptr() != first.data_ptr()
    hold.set()
    take()
    device.synchronize()
    assert buffers.incoming(64).data_ptr() == first.data_ptr()
    buffers.close()


def test_closing_a_lane_ends_its_thread_and_keeps_the_buffers_of_sends_that_run(device):
    buffers = MessageBuffers(None, device)
    before = threading.active_count()
    ended, callbacks = threading.Event(), []

    class Sent:
        source = None

        def done(self):
            return ended.is_set()

        def wait(self, timeout=None):
            ended.wait()

        def add_done_callback(self, fn):
            callbacks.append(fn)

    buffer = buffers.outgoing(64)
    alive = weakref.ref(buffer)
    buffers.post(buffer, Sent, inline=False)
    del buffer
    assert threading.active_count() == before + 1
    buffers.close()
    assert threading.active_count() == before
    assert alive() is not None
    callbacks.pop()(None)
    assert alive() is None
