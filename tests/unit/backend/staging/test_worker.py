"""Tests of the thread that calls functions one after the other."""

import threading

from waiting import until

from slackline.backend.staging._worker import Worker

LIMIT_S = 60


def test_functions_are_called_in_order_before_the_end() -> None:
    worker, called = Worker("in order"), []
    for number in range(100):
        worker.run(lambda number=number: called.append(number))
    worker.close()
    assert called == list(range(100))


def test_a_function_that_is_queued_while_the_thread_ends_is_called_and_both_threads_end() -> None:
    worker, hold, late = Worker("held"), threading.Event(), threading.Event()
    worker.run(hold.wait)
    closer = threading.Thread(target=worker.close, daemon=True)
    closer.start()
    until(lambda: worker._thread is None, "close() does not begin to wait")
    worker.run(late.set)
    hold.set()
    closer.join(LIMIT_S)
    assert not closer.is_alive()
    worker.close()
    assert late.is_set()
