"""Tests of the count of operations whose copies to the host are still to be launched."""

import threading

from slackline.backend.staging import Departures


def test_a_wait_for_departures_ends_with_the_last_one_or_with_the_callers_own_operation():
    departures, ended = Departures(), threading.Event()
    departures.begin()
    departures.begin()
    passed = []

    def wait():
        departures.wait_unless(ended.is_set)
        passed.append(True)

    first = threading.Thread(target=wait)
    first.start()
    departures.end()
    departures.notify()
    assert passed == []
    ended.set()
    departures.notify()
    first.join()
    assert passed == [True]
    ended.clear()
    second = threading.Thread(target=wait)
    second.start()
    assert passed == [True]
    departures.end()
    second.join()
    assert passed == [True, True]
    departures.wait_unless(lambda: False)
