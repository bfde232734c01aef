from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed.pipelining import schedules

from slackline.errors import UsageError
from slackline.plan.pipeline import (
    Instruction,
    PipelinePlan,
    Scenario,
    dual_pipe_v,
    from_torch_csv,
    generate,
    gpipe,
    interleaved_1f1b,
    to_torch_csv,
    validate,
    zb_h1,
    zb_v,
)


def theirs(kind: type, ranks: int, stages: int, microbatches: int, of_rank: Sequence[int]) -> Any:
    """Return PyTorch's schedule as rank 0 builds it. Planning needs no process group."""
    mine = [
        SimpleNamespace(
            stage_index=stage,
            num_stages=stages,
            group_size=ranks,
            group_rank=0,
            submod=torch.nn.Identity(),
            is_last=stage == stages - 1,
            has_backward=True,
        )
        for stage in of_rank
    ]
    return kind(mine, microbatches, loss_fn=torch.nn.functional.mse_loss)


def cells(order: dict[int, list[Any]]) -> list[list[str]]:
    return [[str(cell) for cell in order[rank] if cell is not None] for rank in sorted(order)]


def ours(plan: PipelinePlan) -> list[list[str]]:
    return [line.split(",") for line in to_torch_csv(plan).splitlines()]


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 8), (4, 12), (4, 3)])
def test_zb_v_is_pytorchs(ranks: int, count: int) -> None:
    schedule = theirs(schedules.ScheduleZBVZeroBubble, ranks, 2 * ranks, count, (0, 2 * ranks - 1))
    assert ours(zb_v(2 * ranks, count)) == cells(schedule.pipeline_order)


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (3, 6), (4, 8), (4, 12)])
def test_dualpipe_v_is_pytorchs(ranks: int, count: int) -> None:
    schedule = theirs(schedules.ScheduleDualPipeV, ranks, 2 * ranks, count, (0, 2 * ranks - 1))
    expected = []
    for rank in range(ranks):
        actions = schedule._calculate_single_rank_operations(rank)
        expected.append([str(part) for each in actions for part in each.sub_actions or (each,)])
    assert ours(dual_pipe_v(2 * ranks, count, full_backward=True)) == expected


@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 8), (4, 12), (4, 3)])
def test_interleaved_1f1b_is_pytorchs(ranks: int, count: int) -> None:
    schedule = theirs(schedules.ScheduleInterleaved1F1B, ranks, 2 * ranks, count, (0, ranks))
    plan = interleaved_1f1b(2 * ranks, count, full_backward=True)
    assert ours(plan) == cells(schedule.pipeline_order)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: zb_h1(4, 6), id="zb-h1"),
        pytest.param(lambda: zb_v(8, 6), id="zb-v"),
        pytest.param(lambda: dual_pipe_v(8, 9, full_backward=True), id="dualpipe-v"),
        pytest.param(lambda: gpipe(4, 3, full_backward=True), id="gpipe"),
        pytest.param(
            lambda: generate("auto", Scenario.uniform(4, 6, (10, 10, 10), cap=4).delayed(2, 60)),
            id="auto",
        ),
    ],
)
def test_pytorchs_runtime_loads_our_csv(make: Callable[[], PipelinePlan], tmp_path: Path) -> None:
    plan = make()
    path = tmp_path / "plan.csv"
    path.write_text(to_torch_csv(plan))
    mine = [stage for stage, rank in enumerate(plan.placement) if rank == 0]
    runtime = theirs(
        schedules._PipelineScheduleRuntime, plan.ranks, plan.stages, plan.microbatches, mine
    )
    runtime._load_csv(str(path), format="compute_only")
    assert cells(runtime.pipeline_order) == ours(plan)
    ranks = runtime.stage_index_to_group_rank
    assert tuple(ranks[stage] for stage in range(plan.stages)) == plan.placement


@pytest.mark.parametrize("written", ["compute_only", "compute_comms"])
def test_we_load_pytorchs_csv(written: str, tmp_path: Path) -> None:
    path = tmp_path / "torch.csv"
    schedule = theirs(schedules.ScheduleZBVZeroBubble, 4, 8, 12, (0, 7))
    schedule._dump_csv(str(path), format=written)
    plan = validate(from_torch_csv(path.read_text(), "zb-v"))
    assert plan == zb_v(8, 12)


def test_a_plan_reads_back() -> None:
    plan = zb_h1(4, 6)
    assert from_torch_csv(to_torch_csv(plan), "zb-h1") == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the CSV has no rows"),
        ("0F0,,\n,,\n", "the CSV's row 1 has no computation"),
        (
            "0F0,0X0\n",
            'the CSV\'s row 0, step 1 has "0X0", which is no computation like 2F0, 2I0, 2W0, 2B0',
        ),
        ("0F0,0B0\n0F1,0B1\n", "the CSV has stage 0 on rank 0 and, in F1, on rank 1"),
        ("0F0,0B0,2F0,2B0\n", "the CSV has stages up to 2, but nothing of stage 1"),
    ],
)
def test_what_is_wrong_with_a_csv_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        from_torch_csv(text)
    assert str(error.value) == message


def test_a_csv_with_a_cycle_says_who_waits_for_whom() -> None:
    plan = from_torch_csv("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n")
    assert plan.programs[0][1] == Instruction.parse("0BW0")
    with pytest.raises(UsageError) as error:
        validate(plan)
    assert str(error.value).splitlines()[0] == (
        "csv, 2 stages, 2 microbatches: stage 0, BW0: waits for 1BW0, which stands behind 1F1, "
        "which waits for 0F1, which stands behind 0BW0: no one can go on"
    )
