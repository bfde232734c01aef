"""The times of instructions on a device, from events that the device passes later than the host."""

from types import SimpleNamespace

import pytest
import torch

from slackline.pipeline import _device


class Device:
    """A device that passes each event at a time which the test sets, and the host's clock."""

    def __init__(self, monkeypatch):
        self.now_ns, self.passes_ns = 0, []
        monkeypatch.setattr(_device, "new_event", lambda **named: Event(self))
        # Names of the module alone: other threads of this process need the real ones.
        cuda = SimpleNamespace(current_stream=lambda device: self)
        monkeypatch.setattr(_device, "torch", SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(_device, "time", SimpleNamespace(monotonic_ns=lambda: self.now_ns))

    def record_event(self, event):
        event.at_ns = self.passes_ns.pop(0)


class Event:
    def __init__(self, device):
        self._device, self.at_ns = device, 0

    def synchronize(self):
        self._device.now_ns = max(self._device.now_ns, self.at_ns)

    def elapsed_time(self, end):
        return (end.at_ns - self.at_ns) / 1e6


@pytest.mark.parametrize("late_ns", [0, 7_000_000])
def test_times_count_from_the_hosts_beginning_though_the_device_begins_later(monkeypatch, late_ns):
    device = Device(monkeypatch)
    throttle = _device.DeviceThrottle(torch.device("cuda", 0))
    began_ns = device.now_ns = 1_000_000
    first_ns = began_ns + late_ns
    # Times of the begin, of two instructions (begin, a mark that is replaced, end), and of the last
    # event.
    device.passes_ns = [
        first_ns,
        *(first_ns, first_ns, first_ns + 3_000_000),
        *(first_ns + 3_000_000, first_ns + 3_000_000, first_ns + 5_000_000),
        first_ns + 5_500_000,
    ]
    throttle.begin()
    assert device.now_ns == began_ns, "the host waited for the step before"
    for _ in range(2):
        throttle.starting()
        throttle.started()
    assert throttle.times_ns() == [
        (late_ns, late_ns + 3_000_000),
        (late_ns + 3_000_000, late_ns + 5_000_000),
    ]


def test_a_step_without_instructions_has_no_times(monkeypatch):
    device = Device(monkeypatch)
    device.passes_ns = [0]
    throttle = _device.DeviceThrottle(torch.device("cuda", 0))
    assert throttle.times_ns() is None
    throttle.begin()
    assert throttle.times_ns() is None
