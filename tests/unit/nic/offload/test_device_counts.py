"""Tests of the sums of devices' counters."""

from slackline.nic.offload import DeviceCounts


def test_the_latest_counters_of_each_device_are_added() -> None:
    reports: list[dict[str, int]] = []
    counts = DeviceCounts(lambda counters: reports.append(dict(counters)))
    one, other = counts.of_device(), counts.of_device()
    one({"frames": 2, "cycles": 10})
    other({"frames": 5})
    one({"frames": 3, "cycles": 40})
    assert reports == [
        {"frames": 2, "cycles": 10},
        {"frames": 7, "cycles": 10},
        {"frames": 8, "cycles": 40},
    ]
