"""Tests of transfers that another thread posts, and of the queue that posts them in order."""

from datetime import timedelta

import pytest

from slackline.backend.staging import AllOf, DeferredTransfer, PostingQueue
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

    def open_at_end(self, word, value):
        self.gates = [*getattr(self, "gates", []), (word, value)]


def test_a_deferred_transfer_passes_gates_on_when_it_is_posted_and_later():
    deferred, posted = DeferredTransfer(), Finished()
    deferred.open_at_end(64, 1)
    deferred.post(lambda: posted)
    deferred.open_at_end(128, 2)
    assert posted.gates == [(64, 1), (128, 2)]
    failed = DeferredTransfer()
    failed.open_at_end(64, 1)
    failed.post(lambda: 1 // 0)
    failed.open_at_end(128, 2)
    with pytest.raises(ZeroDivisionError):
        failed.wait()


def test_one_transfer_opens_the_gate_of_the_set_of_it_alone():
    one, other = Finished(), Finished()
    AllOf([one]).open_at_end(64, 1)
    assert one.gates == [(64, 1)]
    AllOf([one, other]).open_at_end(128, 2)  # The callback opens this gate.
    assert one.gates == [(64, 1)]


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
