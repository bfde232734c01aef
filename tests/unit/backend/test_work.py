"""Tests of the objects that operations return: waiting, futures, errors, timeouts, profiles."""

import json
from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from slackline.errors import ClosedError, PeerError, TimeoutError

SHORT = timedelta(milliseconds=50)


def test_a_future_holds_the_tensors(ranks):
    def rank_main(group):
        tensor = torch.tensor([group.rank() + 1.0])
        work = dist.all_reduce(tensor, group=group, async_op=True)
        (result,) = work.get_future().wait()
        assert work.get_future().done()
        assert work.result()[0] is tensor
        doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        return result.item(), doubled.wait().item(), work.is_success(), work.exception()

    assert ranks(2, rank_main) == [(3.0, 6.0, True, None)] * 2


def test_a_finished_synchronous_work_answers_like_any_other(ranks):
    def rank_main(group):
        options = dist.AllreduceOptions()
        options.asyncOp = False
        work = group.allreduce([torch.ones(1)], options)
        work.synchronize()
        assert work.get_future().wait() == []
        return work.wait(), work.is_completed(), work.is_success(), work.exception(), work.result()

    assert ranks(1, rank_main) == [(True, True, True, None, [])]


def test_waiting_too_long_raises_a_timeout_error_with_the_text_torch_looks_for(ranks):
    def rank_main(group):
        if group.rank() == 0:
            with pytest.raises(TimeoutError, match=" Timed out "):
                dist.all_reduce(torch.ones(1), group=group, async_op=True).wait(SHORT)

    ranks(2, rank_main)


@pytest.mark.parametrize("form", ["options", "argument", "group"])
def test_a_call_may_have_a_timeout_of_its_own(ranks, form):
    def rank_main(group):
        if group.rank() != 0:
            return
        options = dist.AllreduceOptions()
        if form == "options":
            options.timeout = SHORT
            options.asyncOp = False
        elif form == "argument":
            options = dist.ReduceOp.SUM
        else:
            group.set_timeout(SHORT)
        timeout = SHORT if form == "argument" else None
        with pytest.raises(TimeoutError, match=r" Timed out after 0\.05 s"):
            group.allreduce([torch.ones(1)], options, timeout).wait()

    ranks(2, rank_main)


def test_a_peers_death_reaches_wait_and_future(ranks):
    def rank_main(group):
        if group.rank() == 1:
            group.abort()
            return None
        work = dist.all_reduce(torch.ones(1), group=group, async_op=True)
        with pytest.raises(PeerError, match=" closed "):
            work.wait()
        with pytest.raises(RuntimeError, match=r"PeerError: rank 1 has closed "):
            work.get_future().wait()
        assert isinstance(work.exception(), PeerError)
        return work.is_completed(), work.is_success()

    assert ranks(2, rank_main)[0] == (True, False)


def test_a_group_that_was_shut_down_refuses_work(ranks):
    def rank_main(group):
        group.shutdown()
        group.shutdown()
        group.abort()
        with pytest.raises(ClosedError):
            dist.all_reduce(torch.ones(1), group=group)

    ranks(2, rank_main)


def test_point_to_point_matches_by_tag_not_by_order(ranks):
    def rank_main(group):
        if group.rank() == 0:
            works = [group.send([torch.full((2,), float(tag))], 1, tag) for tag in (1, 2, 3)]
            for work in works:
                work.wait()
            return None
        received = []
        for tag in (3, 1, 2):
            tensor = torch.empty(2)
            group.recv([tensor], 0, tag).wait()
            received.append(tensor[0].item())
        return received

    assert ranks(2, rank_main)[1] == [3.0, 1.0, 2.0]


def test_a_receive_from_anyone_tells_who_it_was(ranks):
    def rank_main(group):
        if group.rank() == 2:
            group.send([torch.tensor([5.0])], 0).wait()
        if group.rank() != 0:
            return None
        tensor = torch.empty(1)
        work = group.recv_anysource([tensor], 0)
        work.wait()
        return work.source_rank(), work._source_rank(), tensor.item()

    assert ranks(3, rank_main)[0] == (2, 2, 5.0)


def test_device_coalescing_gives_one_work_for_all(ranks):
    def rank_main(group):
        peer = 1 - group.rank()
        received = torch.empty(2)
        with dist._coalescing_manager(group, torch.device("cpu"), async_ops=True) as works:
            group.send([torch.ones(2) * group.rank()], peer)
            group.recv([received], peer)
        works.wait()
        return received.tolist()

    assert ranks(2, rank_main) == [[1.0, 1.0], [0.0, 0.0]]


def test_a_monitored_barrier_passes_when_all_come(ranks):
    ranks(3, lambda group: group.monitored_barrier())


@pytest.mark.parametrize(("everyone", "names"), [(False, "1"), (True, "1, 3")])
def test_a_monitored_barrier_names_who_did_not_come(ranks, everyone, names):
    def rank_main(group):
        if group.rank() in (1, 3):
            return
        with pytest.raises(TimeoutError) as caught:
            group.monitored_barrier(timeout=SHORT, wait_all_ranks=everyone)
        if group.rank() == 0:
            assert str(caught.value) == (
                "monitored_barrier Timed out after 0:00:00.050000: "
                f"ranks that did not come: {names}"
            )

    ranks(4, rank_main)


def test_profiles_name_the_operation_after_the_backend(ranks):
    def rank_main(group):
        with torch.profiler.profile(acc_events=True) as profile:
            dist.all_reduce(torch.ones(1), group=group)
            dist.all_reduce(torch.ones(1), group=group, async_op=True).wait()
            dist.broadcast(torch.ones(1), group_src=0, group=group)
        return [event.name for event in profile.events() if event.name.startswith("slackline:")]

    assert sorted(ranks(1, rank_main)[0]) == [
        "slackline:all_reduce",
        "slackline:all_reduce",
        "slackline:all_reduce posted",
        "slackline:broadcast",
    ]


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_a_trace_says_of_each_operation_its_bytes_its_group_and_its_number(ranks, tmp_path):
    def operations(group):
        outputs = [torch.ones(4, 5) for _ in range(2)]
        dist.all_reduce(torch.ones(1000), group=group)
        dist.all_gather(outputs, torch.ones(4, 5), group=group, async_op=True).wait()
        if group.rank() == 0:
            group.send([torch.ones(2, dtype=torch.int64)], 1, 7).wait()
        else:
            group.recv([torch.ones(2, dtype=torch.int64)], 0, 7).wait()
        dist.barrier(group=group)

    def rank_main(group):
        group._set_group_name("pair")
        dist.all_reduce(torch.ones(3), group=group)  # number 0, before the profile
        if group.rank() == 1:  # a profile contains the events of the thread on which it began
            operations(group)
            return
        with torch.profiler.profile(record_shapes=True) as profile:
            operations(group)
        profile.export_chrome_trace(str(tmp_path / "trace.json"))

    ranks(2, rank_main)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    told = {each["name"]: each for each in events if each["name"].startswith("slackline:")}
    facts = ("bytes", "group", "sequence", "peer", "tag")
    shown = {
        name: {fact: each["args"][fact] for fact in facts if fact in each["args"]}
        for name, each in told.items()
    }
    assert shown == {
        "slackline:all_reduce": {"bytes": 4000, "group": "pair", "sequence": 1},
        "slackline:all_gather": {},
        "slackline:all_gather posted": {"bytes": 160, "group": "pair", "sequence": 2},
        "slackline:send": {},
        "slackline:send posted": {"bytes": 16, "group": "pair", "peer": 1, "tag": 7},
        "slackline:barrier": {"bytes": 0, "group": "pair", "sequence": 3},
    }
    assert told["slackline:all_reduce"]["args"]["Input Dims"] == [[1000]]
    assert {each["cat"] for each in told.values()} == {"user_annotation"}
