"""Tests of transfers that another thread posts, and of the queue that posts them in order."""

from datetime import timedelta

import pytest

from slackline.backend.staging import DeferredTransfer, PostingQueue
from slackline.errors import TimeoutError, UsageError
from slackline.testing.thread_device import ThreadEvent


class Finished:
    """A transfer that has finished."""

    source = 4

    def done(self):
        return True

    def wait(self, timeout=None):
        pass

    def add_done_callback(self, fn):
        fn(None)


def test_the_queue_posts_in_the_order_of_the_calls():
    queue = PostingQueue("posting")
    order = []
    event = ThreadEvent()

    def posting(name):
        event.synchronize()
        order.append(name)
        return Finished()

    first = queue.post(lambda: posting("first"))
    second = queue.post(lambda: posting("second"))
    assert not first.done()
    assert not second.done()
    assert order == []
    event.happen()
    second.wait()
    assert order == ["first", "second"]
    assert first.done()
    assert first.source == 4
    queue.close()


def test_the_queue_ends_after_what_was_queued():
    queue = PostingQueue("posting")
    transfers = [queue.post(Finished) for _ in range(5)]
    queue.close()
    assert all(transfer.done() for transfer in transfers)


def test_an_error_in_a_late_post_is_the_transfers_error():
    deferred = DeferredTransfer()
    seen = []
    deferred.add_done_callback(seen.append)

    def fail():
        raise UsageError("no such rank")

    deferred.post(fail)
    deferred.add_done_callback(seen.append)
    with pytest.raises(UsageError, match=r"^no such rank$"):
        deferred.wait()
    assert deferred.done()
    assert [str(error) for error in seen] == ["no such rank"] * 2


def test_a_wait_for_an_operation_that_is_not_posted_ends_with_its_timeout():
    deferred = DeferredTransfer()
    with pytest.raises(TimeoutError, match=r"^the wait Timed out after 0:00:00\.010000; the oper"):
        deferred.wait(timedelta(milliseconds=10))
    deferred.post(Finished)
    deferred.wait(timedelta(milliseconds=10))
