"""Tests of operations on an accelerator's tensors, with threads as the streams."""

import threading
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch import nn

from slackline.backend import SlacklineGroup
from slackline.backend import _context as context
from slackline.elastic import ElasticState
from slackline.errors import ClosedError, PeerError, TimeoutError, UsageError
from slackline.testing import LoopbackFabric
from slackline.testing.thread_device import ThreadDevice

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
LIMIT = timedelta(seconds=20)
LONG = 9 << 20
"""A length, in elements of 4 bytes, that needs more host memory than there is for pieces."""


def device_ranks(size, function):
    """Run `function(group, device)` as every rank; return the results, or raise an error."""
    fabric = LoopbackFabric(size, timeout=LIMIT)
    store = dist.HashStore()
    results, errors = [None] * size, []

    def run(rank):
        device = ThreadDevice()
        group = SlacklineGroup(
            fabric.groups[rank], store, lambda: None, device_of=lambda found: device
        )
        try:
            results[rank] = function(group, device)
        except BaseException as error:  # raised again below, in the test's thread
            errors.append(error)
            group.abort()
        device.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def rank_1_aborts(group, past):
    """On rank 1, abort the group when `past` is set; return whether this is rank 1."""
    if group.rank() != 1:
        return False
    assert past.wait(60)
    group.abort()
    return True


def test_copies_follow_the_kernels_before_the_call_and_precede_those_after_the_wait():
    def rank_main(group, device):
        me, hold = group.rank(), threading.Event()
        tensor = torch.full((1000,), float(me + 1))
        device.current.launch(hold.wait)
        device.current.launch(lambda: tensor.mul_(2))
        work = dist.all_reduce(tensor, group=group, async_op=True)
        hold.set()
        assert work.wait()
        device.current.launch(lambda: tensor.div_(3))
        device.synchronize()
        return tensor.unique().tolist()

    assert device_ranks(2, rank_main) == [[2.0]] * 2


def test_every_family_of_operations_takes_tensors_of_the_device():
    def rank_main(group, device):
        me = group.rank()
        host = torch.full((3,), float(me))
        dist.broadcast(host, group_src=1, group=group)
        gathered = torch.empty(2, 4)
        dist.all_gather_into_tensor(gathered, torch.full((4,), me + 0.5), group=group)
        part = torch.empty(2)
        dist.reduce_scatter_tensor(part, torch.arange(4.0), group=group)
        crossed = torch.arange(6.0).view(2, 3).t()
        dist.all_reduce(crossed, group=group)
        device.synchronize()
        works = [
            group.send([gathered[me]], 1 - me),
            group.recv([received := torch.empty(4)], 1 - me),
        ]
        for work in works:
            work.wait()
        dist.barrier(group=group)
        device.synchronize()
        return host.tolist(), part.tolist(), crossed.tolist(), received.tolist()

    for rank, result in enumerate(device_ranks(2, rank_main)):
        crossed = [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]]
        assert result == ([1.0] * 3, [[0.0, 2.0], [4.0, 6.0]][rank], crossed, [1.5 - rank] * 4)


def test_each_thread_that_uses_the_device_has_entered_it_before():
    def rank_main(group, device):
        me = group.rank()
        long, short = torch.ones(LONG), torch.full((3,), float(me))
        works = [dist.all_reduce(long, group=group, async_op=True)]
        works += [group.send([short], 1 - me), group.recv([torch.empty(3)], 1 - me)]
        for work in works:
            work.wait(LIMIT)
        return device.entered

    assert device_ranks(2, rank_main) == [{"slackline-collectives", "slackline-sends"}] * 2


def test_a_result_does_not_wait_for_a_slow_computation_of_another_stream():
    """Check that an operation ends while a computation holds up one on another stream."""

    def rank_main(group, device):
        slow, hold = device.new_stream(), threading.Event()
        late, soon = torch.ones(3), torch.ones(3)
        if group.rank() == 1:
            group.send([late], 0).wait(LIMIT)
            group.send([soon], 0).wait(LIMIT)
            return None
        late.zero_()
        soon.zero_()
        slow.launch(hold.wait)
        with device.on(slow):
            waiting = group.recv([late], 1)
        first = group.recv([soon], 1)
        first.wait(LIMIT)
        device.synchronize()
        found = soon.tolist(), late.tolist()
        hold.set()
        waiting.wait(LIMIT)
        device.synchronize()
        return found, late.tolist()

    ones, zeros = [1.0] * 3, [0.0] * 3
    assert device_ranks(2, rank_main)[0] == ((ones, zeros), ones)


@pytest.mark.parametrize("form", ["wait", "synchronize", "block_current_stream", "coalesced"])
def test_a_wait_for_the_network_holds_the_stream_and_not_the_host(form):
    """Rank 1 calls the operation only when the host of rank 0 is past its wait."""
    past = threading.Event()

    def rank_main(group, device):
        tensors = [torch.full((3,), group.rank() + 1.0), torch.full((2,), group.rank() + 5.0)]
        if group.rank() == 1:
            assert past.wait(60)
        if form == "coalesced":
            group._start_coalescing(device.device)
            for tensor in tensors:
                group.allreduce([tensor])
            group._end_coalescing(device.device).wait()
        else:
            works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
            for work in works:
                getattr(work, form)()
        seen = []
        device.current.launch(lambda: seen.extend(tensor.clone() for tensor in tensors))
        past.set()
        device.synchronize()
        return [tensor.unique().tolist() for tensor in seen]

    assert device_ranks(2, rank_main) == [[[3.0], [11.0]]] * 2


def test_an_operation_is_completed_when_its_results_are_on_the_device():
    def rank_main(group, device):
        tensor, hold = torch.full((4,), 7.0), threading.Event()
        if group.rank() == 1:
            group.send([tensor], 0).wait(LIMIT)
            return None
        tensor.zero_()
        _, _, landing = device.beside(device.current)
        landing.launch(hold.wait)
        work = group.recv([tensor], 1)
        work.wait(LIMIT)
        before = work.is_completed(), work.is_success(), tensor.tolist()
        hold.set()
        device.synchronize()
        return before, work.is_completed(), work.is_success(), tensor.tolist()

    found = device_ranks(2, rank_main)[0]
    assert found == ((False, False, [0.0] * 4), True, True, [7.0] * 4)


@pytest.mark.parametrize("posted", ["send", "receive"])
def test_messages_do_not_wait_for_a_long_collective_before_them(posted):
    """Make the peer call the collective only after the message, so the message must come first."""

    def rank_main(group, device):
        first = group.rank() == 0
        tensor, message = torch.full((LONG,), 2, dtype=torch.int32), torch.full((5,), 3.0)
        if first:
            work = dist.all_reduce(tensor, group=group, async_op=True)
        if first == (posted == "send"):
            group.send([message], 1 - group.rank()).wait(LIMIT)
        else:
            message.zero_()
            group.recv([message], 1 - group.rank()).wait()
            device.synchronize()
        if not first:
            work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()
        device.synchronize()
        return message.tolist(), tensor.unique().tolist()

    assert device_ranks(2, rank_main) == [([3.0] * 5, [4])] * 2


def test_no_gate_is_placed_while_copies_of_earlier_operations_are_still_to_be_launched():
    """Make the peer send when the host is about to wait. A gate is a word in host memory for which
    a stream waits; the host would otherwise place one here."""
    waiting = threading.Event()

    def rank_main(group, device):
        tensor, gates = torch.full((4,), 7.0), []
        if group.rank() == 1:
            assert waiting.wait(60)
            group.send([tensor], 0).wait(LIMIT)
            return None
        tensor.zero_()
        gate = device.gate
        device.gate = lambda: gates.append(gate()) or gates[-1]
        device.departures.begin()
        work = group.recv([tensor], 1)
        waiting.set()
        work.wait()
        device.departures.end()
        device.synchronize()
        return tensor.tolist(), gates

    assert device_ranks(2, rank_main)[0] == ([7.0] * 4, [])


def test_a_wait_blocks_until_the_operation_is_posted():
    """While a CUDA stream waits for the network at a gate, the driver may block the calls of other
    threads. So the gate must be closed only when the posting thread needs the driver no more."""

    def rank_main(group, device):
        tensor, hold, counted = torch.full((4,), group.rank() + 1.0), threading.Event(), []
        wait_unless = device.departures.wait_unless

        def order(ended):
            asked = []
            wait_unless(lambda: asked.append(ended) or True)
            counted.append(len(asked))
            hold.set()
            wait_unless(ended)

        device.departures.wait_unless = order
        device.current.launch(hold.wait)
        dist.all_reduce(tensor, group=group)
        device.synchronize()
        return tensor.tolist(), counted

    assert device_ranks(2, rank_main) == [([3.0] * 4, [1])] * 2


@pytest.mark.parametrize("count", [4, (3 << 20) + 3])
@pytest.mark.parametrize("dense", [True, False])
def test_tensors_of_the_inference_mode_get_their_results(count, dense):
    def rank_main(group, device):
        with torch.inference_mode():
            tensor = torch.full((count, 2), group.rank() + 1.0)
            tensor = tensor if dense else tensor[:, 0]
            work = dist.all_reduce(tensor, group=group, async_op=True)
            work.wait()
            device.synchronize()
            return tensor.unique().tolist()

    assert device_ranks(2, rank_main) == [[3.0]] * 2


@pytest.mark.parametrize("kind", [torch.float32, torch.float8_e5m2, torch.float4_e2m1fn_x2])
def test_a_failure_opens_the_gate_of_an_inference_tensor_of_any_type(kind):
    past = threading.Event()

    def rank_main(group, device):
        if rank_1_aborts(group, past):
            return None
        with torch.inference_mode():
            tensor = torch.zeros(16, dtype=torch.uint8).view(kind)
            group.recv([tensor], 1).wait()
            past.set()
            device.synchronize()
            with pytest.raises(PeerError, match=" closed "):
                group.settle()
            return kind != torch.float4_e2m1fn_x2 and tensor.float().isnan().all().item()

    assert device_ranks(2, rank_main)[0] is (kind != torch.float4_e2m1fn_x2)


@pytest.mark.parametrize("count", [(1 << 20) + 1, (3 << 20) + 3])
def test_a_tensor_longer_than_a_piece_is_summed_in_pieces_with_the_bits_of_a_short_one(count):
    def rank_main(group, device):
        whole = torch.arange(count, dtype=torch.int32) % 1021 * (group.rank() + 1)
        doubled = whole.to(torch.float32)
        wide = torch.zeros(count, 2, dtype=torch.int32)
        wide[:, 0] = whole
        factor = dist._make_nccl_premul_sum(2.0)
        dist.all_reduce(whole, group=group)
        dist.all_reduce(doubled, op=factor, group=group)
        dist.all_reduce(wide[:, 0], group=group)
        device.synchronize()
        return whole, doubled, wide

    for whole, doubled, wide in device_ranks(2, rank_main):
        expected = torch.arange(count, dtype=torch.int32) % 1021 * 3
        assert torch.equal(whole, expected)
        assert torch.equal(doubled, 2 * expected.to(torch.float32))
        assert torch.equal(wide[:, 0], expected)
        assert not wide[:, 1].any()


@pytest.mark.parametrize("kind", ["apart", "own place", "shifted", "with gaps"])
@pytest.mark.parametrize("size", [2, 3])
def test_long_tensors_are_gathered_and_scattered_in_pieces(size, kind):
    """Check tensors of which a part is the other one, lies across two parts, or has gaps."""
    count = (1 << 20) + 5

    def whole_and_part(rank):
        whole = torch.zeros(size * count, dtype=torch.int32)
        start = {"own place": rank * count, "shifted": count // 2}.get(kind)
        if start is not None:
            return whole, whole[start : start + count]
        if kind == "with gaps":
            return torch.zeros(size * count, 2, dtype=torch.int32)[:, 0], torch.zeros(
                count, 2, dtype=torch.int32
            )[:, 0]
        return whole, torch.zeros(count, dtype=torch.int32)

    def fill(device, tensor, values):
        device.current.launch(lambda: tensor.copy_(values))
        if kind in ("shifted", "with gaps"):
            device.synchronize()  # The call copies the tensor, here at once, on CUDA in the stream.

    def rank_main(group, device):
        me = group.rank()
        whole, part = whole_and_part(me)
        fill(device, part, torch.arange(count, dtype=torch.int32) + me)
        dist.all_gather_into_tensor(whole, part, group=group)
        device.synchronize()
        gathered = whole.clone()
        whole, part = whole_and_part(me)
        fill(device, whole, torch.arange(size * count, dtype=torch.int32) * (me + 1))
        dist.reduce_scatter_tensor(part, whole, group=group)
        device.synchronize()
        return gathered, part.clone()

    rows = [torch.arange(count, dtype=torch.int32) + rank for rank in range(size)]
    total = torch.arange(size * count, dtype=torch.int32) * (size * (size + 1) // 2)
    for rank, (gathered, part) in enumerate(device_ranks(size, rank_main)):
        assert torch.equal(gathered, torch.cat(rows))
        assert torch.equal(part, total[rank * count : (rank + 1) * count])


@pytest.mark.parametrize("count", [4, (3 << 20) + 3])
def test_a_future_has_the_results_when_it_is_complete(count):
    def rank_main(group, device):
        tensor = torch.full((count,), group.rank() + 1.0).view(1, -1).t()
        work = dist.all_reduce(tensor, group=group, async_op=True)
        total = work.get_future().then(lambda future: future.value()[0].unique().tolist())
        return total.wait()

    assert device_ranks(2, rank_main) == [[3.0]] * 2


def test_a_coalesced_works_future_has_all_results():
    def rank_main(group, device):
        tensors = [torch.full((3,), group.rank() + 1.0), torch.full((2,), group.rank() + 5.0)]
        group._start_coalescing(device.device)
        for tensor in tensors:
            group.allreduce([tensor])
        work = group._end_coalescing(device.device)
        values = [value.tolist() for value in work.get_future().wait()]
        return values, work.is_completed(), work.is_success()

    assert device_ranks(2, rank_main) == [([[3.0] * 3, [11.0] * 2], True, True)] * 2


def test_an_error_after_the_wait_is_raised_by_the_next_call_and_the_results_are_no_numbers():
    past = threading.Event()

    def rank_main(group, device):
        if rank_1_aborts(group, past):
            return None
        floats, integers = torch.ones(3), torch.ones(3, dtype=torch.int32)
        works = [
            dist.all_reduce(tensor, group=group, async_op=True) for tensor in (floats, integers)
        ]
        for work in works:
            work.wait()
        past.set()
        device.synchronize()
        with pytest.raises(PeerError, match=" closed "):
            group.settle()
        with pytest.raises(PeerError, match=" closed "):
            dist.all_reduce(torch.ones(1), group=group)
        group.shutdown()
        with pytest.raises(ClosedError, match=r"^the process group has ended$"):
            dist.all_reduce(torch.ones(1), group=group)
        return floats.isnan().all().item(), works[0].is_success(), type(works[0].exception())

    assert device_ranks(2, rank_main)[0] == (True, False, PeerError)


def test_the_end_of_a_group_that_is_replaced_only_logs_late_errors(caplog):
    past = threading.Event()

    def rank_main(group, device):
        if rank_1_aborts(group, past):
            return
        dist.all_reduce(torch.ones(3), group=group, async_op=True).wait()
        past.set()
        device.synchronize()
        context.create._made.add(group)
        context.create.errors_are_known()
        group.shutdown()

    device_ranks(2, rank_main)
    assert "failed after a stream had begun to wait" in caplog.text


def test_the_end_of_a_group_raises_an_error_that_no_call_has_raised():
    past = threading.Event()

    def rank_main(group, device):
        if rank_1_aborts(group, past):
            return
        dist.all_reduce(torch.ones(3), group=group)
        past.set()
        device.synchronize()
        with pytest.raises(PeerError, match=" closed "):
            group.shutdown()
        group.shutdown()

    device_ranks(2, rank_main)


def test_an_elastic_state_begins_no_step_on_gradients_that_failed_after_the_wait():
    past = threading.Event()

    def rank_main(group, device):
        if rank_1_aborts(group, past):
            return None
        context.create._made.add(group)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        state = ElasticState(model=model, optimizer=optimizer)
        before = [each.clone() for each in model.parameters()]
        model(torch.ones(1, 2)).sum().backward()
        works = [
            dist.all_reduce(parameter.grad, group=group, async_op=True)
            for parameter in model.parameters()
        ]
        for work in works:
            work.wait()
        past.set()
        with pytest.raises(PeerError, match=" closed "):
            optimizer.step()
        context.create._made.discard(group)
        return list(map(torch.equal, before, model.parameters())), state._whole

    assert device_ranks(2, rank_main)[0] == ([True, True], True)


def test_a_wait_with_a_timeout_blocks_the_host_at_most_that_long():
    def rank_main(group, device):
        if group.rank() == 0:
            work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
            with pytest.raises(TimeoutError, match=" Timed out "):
                work.wait(timedelta(milliseconds=50))
            assert not work.is_completed()

    device_ranks(2, rank_main)


def test_tensors_of_another_device_are_refused():
    def rank_main(group, device):
        with pytest.raises(
            UsageError, match=r"^slackline takes dense tensors, not a tensor on the device meta"
        ):
            dist.all_reduce(torch.ones(2, device="meta"), group=group)

    device_ranks(1, rank_main)
