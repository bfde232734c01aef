"""Tests of programs written for gloo: slackline serves them with the results of gloo."""

import importlib.util
import ipaddress
import itertools
import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from example_ranks import asked, example
from rank_marks import mark, wait_for_marks
from torch import distributed as dist
from torch import nn

import slackline
from slackline.backend import SlacklineGroup

PROGRAMS = Path(__file__).with_name("gloo_programs")
SLACKLINE = [sys.executable, "-c", "import sys; from slackline.cli import main; sys.exit(main())"]
AS_GLOO = {"SLACKLINE_AS": "gloo"}
SUPPORT = Path(__file__).parents[1] / "support"
LOOK_AND_LEAVE = f"""
import json, os, runpy, sys
import torch.distributed as dist
sys.path.insert(0, {str(SUPPORT)!r})
from listening import listening

leave = dist.destroy_process_group


def look_and_leave():
    pids = [None] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 0:
        with open("listening", "w") as file:
            json.dump([sorted(listening([pid])) for pid in (os.getppid(), *pids)], file)
    dist.barrier()
    leave()


dist.destroy_process_group = look_and_leave
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""A script that runs the program sys.argv[1], and writes the addresses of its torchrun and of its
ranks to the file "listening" when the program destroys its group."""


def prepare():
    """Import the modules that programs import."""
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor  # noqa: F401


def program(rank, size, path):
    slackline.register()  # torch is imported already, as at the end of its own import
    return example(rank, size, path)


def layers(*sizes: int) -> nn.Sequential:
    """Return linear layers of these sizes with ReLUs between them, as the programs use them."""
    made: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        made += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*made[:-1])


def replicas_alone(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    """Return the losses of a single process on the data of both ranks."""
    data = [torch.Generator().manual_seed(100 + rank) for rank in range(2)]
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        parts = [torch.randn(12, 16, generator=each) for each in data]
        loss = sum(nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)) for x in parts) / 2
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ddp_alone() -> list[float]:
    torch.manual_seed(0)
    model = layers(16, 64, 1)
    return replicas_alone(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), 8)


def fsdp2_alone() -> list[float]:
    torch.manual_seed(0)
    model = layers(16, 64, 64, 1)
    return replicas_alone(model, torch.optim.Adam(model.parameters(), lr=0.01), 6)


def pipelining_alone() -> list[float]:
    parts = []
    for rank in range(3):
        torch.manual_seed(rank)
        parts += [nn.Linear(16, 16), nn.Tanh()]
    model = nn.Sequential(*parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(4):
        x = torch.randn(8, 16, generator=data)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x.flip(1).tanh())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


ALONE = {"ddp": ddp_alone, "fsdp2": fsdp2_alone, "pipelining": pipelining_alone}
SAID = {
    "monitored": ["missing [1, 2]"],
    "mesh": [
        "data: [2.0, 2.0, 2.0, 2.0, 2.0], 20.0",
        "gloo through slackline",
        "model: [1.0, 1.0, 1.0, 1.0, 1.0], 10.0",
        "gloo through slackline",
        "local (2, 4), (4, 4)",
        "product True",
    ],
    "checkpoint": ["now: equal", "later: equal"],
}


def objects(ranks: int) -> str:
    """Return the line that the program "objects" prints."""
    return str([{"rank": rank, "name": "x" * rank, "shape": (rank, 2)} for rank in range(ranks)])


def check(name: str, lines: list[str], ranks: int) -> None:
    """Compare a program's output with the results of one process, and check which backend served
    it."""
    *said, last = lines
    assert last == "gloo through slackline"
    if name in SAID or name == "objects":
        assert said == SAID.get(name, [objects(ranks)])
        return
    losses = [float(line.removeprefix(f"step {step}: loss ")) for step, line in enumerate(said)]
    assert losses == pytest.approx(ALONE[name](), rel=1e-4)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("monitored", 3),
        ("mesh", 4),
        ("ddp", 2),
        pytest.param("fsdp2", 2, marks=pytest.mark.slow),
        pytest.param("pipelining", 3, marks=pytest.mark.slow),
        pytest.param("checkpoint", 2, marks=pytest.mark.slow),
        pytest.param("objects", 3, marks=pytest.mark.slow),
    ],
)
def test_a_program_that_names_gloo_gets_its_results_from_slackline(job, store, name, size):
    given = {**asked(store, str(PROGRAMS / f"{name}.py")), **AS_GLOO}
    answers = job(size, program, bare=True, environment=given)
    assert [message for _, message in answers] == [""] * size
    check(name, answers[0][0].splitlines(), size)


def command(*arguments: object, directory: Path) -> tuple[int, str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    ended = subprocess.run(
        [*SLACKLINE, "run", *map(str, arguments)],
        cwd=directory,
        env=environment | {"TMPDIR": str(directory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run a program under the command; each rank looks where its job listens before it leaves."""
    folder = tmp_path_factory.mktemp("command")
    path = folder / "script.py"
    path.write_text(LOOK_AND_LEAVE)
    arguments = ("--as", "gloo", "--ranks", 2, path, PROGRAMS / "objects.py")
    code, out, err = command(*arguments, directory=folder)
    assert code == 0, err
    return out.splitlines(), json.loads((folder / "listening").read_text())


def test_the_command_runs_a_program_that_names_gloo_over_slackline(ran):
    check("objects", ran[0], 2)


def test_a_job_of_one_machine_listens_at_its_loopback_address_alone(ran):
    agent, *ranks = ({ipaddress.ip_address(address) for address, _ in each} for each in ran[1])
    assert len(agent) == 1  # the address of the store
    for each in (agent, *ranks):
        assert each
        assert all(address.is_loopback for address in each)


def test_the_command_refuses_a_backend_that_slackline_does_not_serve(tmp_path):
    code, out, err = command("--as", "nccl", PROGRAMS / "ddp.py", directory=tmp_path)
    assert (code, out) == (2, "")
    assert "--as nccl: slackline serves groups of gloo, not of 'nccl'" in err


def beside_another_backend(rank, size, path):
    import torch.testing._internal.distributed.fake_pg  # registers the backend "fake"

    slackline.register()
    strings = ("cpu:gloo,meta:fake", "meta:fake,cpu:gloo", "cpu:slackline,meta:fake")
    for number, backend in enumerate(strings):
        dist.init_process_group(
            backend, init_method=f"file://{path}{number}", rank=rank, world_size=size
        )
        world = dist.group.WORLD
        group = dist.new_group(list(range(size)), backend=backend)
        for each in (world, group):
            assert isinstance(each, SlacklineGroup)
            assert dist.get_backend(each) == backend
            kinds = {device.type for device in each._device_types}
            assert kinds == {"cpu", "meta"}
            assert each._get_backend(torch.device("cpu")) is each
            other = each._get_backend(torch.device("meta"))
            assert type(other).__name__ == "FakeProcessGroup"
            here = torch.full((3,), float(rank))
            dist.all_reduce(here, group=each)
            assert here.tolist() == [sum(range(size))] * 3
            there = torch.empty(3, device="meta")  # slackline itself refuses such tensors
            dist.all_reduce(there, group=each)
            dist.all_gather([torch.empty_like(there) for _ in range(size)], there, group=each)
            if "gloo" in backend:
                dist.distributed_c10d._set_pg_timeout(timedelta(seconds=7), each)
            else:
                each._set_default_timeout(timedelta(seconds=7))  # fake has no timeouts
            assert each.default_timeout == timedelta(seconds=7)
        dist.barrier(group)
        dist.destroy_process_group(group)
        dist.all_reduce(here)
        mark(f"done {number}")
        wait_for_marks(f"done {number}", range(size))
        dist.destroy_process_group()


def test_other_devices_keep_their_backends_in_either_order(job):
    job(2, beside_another_backend, bare=True, environment=AS_GLOO)


def named_otherwise(rank, size, path):
    slackline.register()
    gloo = dist.distributed_c10d.ProcessGroupGloo
    dist.init_process_group("slackline", init_method=f"file://{path}", rank=rank, world_size=size)
    assert dist.get_backend() == "slackline"
    assert not isinstance(dist.group.WORLD, gloo)
    asked_for = dist.new_group(backend="gloo")
    assert isinstance(asked_for, SlacklineGroup)
    assert isinstance(asked_for, gloo)
    store = dist.PrefixStore("apart", dist.group.WORLD.get_group_store())
    # A program that creates gloo's own class gets gloo.
    alone = gloo(store, rank, size, timeout=timedelta(seconds=20))
    assert type(alone) is dist.ProcessGroupGloo
    assert isinstance(alone, gloo)
    tensor = torch.ones(2)
    alone.allreduce([tensor]).wait()
    assert tensor.tolist() == [size, size]
    dist.destroy_process_group()


def test_only_groups_that_name_gloo_are_served_and_its_class_remains(job):
    job(2, named_otherwise, bare=True, environment=AS_GLOO)


def not_asked(rank, size, path):
    slackline.register()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    assert not isinstance(dist.group.WORLD, SlacklineGroup)
    assert dist.distributed_c10d.ProcessGroupGloo is dist.ProcessGroupGloo
    tensor = torch.ones(1)
    dist.all_reduce(tensor)  # with gloo, a rank that still connects fails when another rank leaves
    assert tensor.item() == size
    dist.destroy_process_group()
    for number, backend in enumerate(("cpu:gloo,cuda:slackline", "cuda:slackline,cpu:gloo")):
        dist.init_process_group(
            backend, init_method=f"file://{path}{number}", rank=rank, world_size=size
        )
        world = dist.group.WORLD
        assert isinstance(world, SlacklineGroup)
        assert type(world._get_backend(torch.device("cpu"))) is dist.ProcessGroupGloo
        dist.all_reduce(tensor)
        dist.barrier()
        mark(f"done {number}")
        wait_for_marks(f"done {number}", range(size))
        dist.destroy_process_group()
    assert tensor.item() == size**3
    if not dist.is_nccl_available():
        with pytest.raises(RuntimeError, match="doesn't have NCCL built in"):
            dist.init_process_group(
                "cpu:slackline,cuda:nccl",
                init_method=f"file://{path}nccl",
                rank=rank,
                world_size=size,
            )


def test_gloo_stays_gloo_where_nobody_asks_and_beside_slackline(job):
    job(2, not_asked, bare=True)


def lost(rank, size, path):
    slackline.register()
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    mark("ready")
    if rank == 1:
        wait_for_marks("ready", range(size))
        os._exit(3)
    tensor = torch.ones(1)
    with pytest.raises(slackline.errors.PeerError):
        dist.all_reduce(tensor)
    assert slackline.elastic.shrink().lost == (1,)
    assert (dist.get_backend(), dist.group.WORLD.name()) == ("gloo", "slackline")
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.monitored_barrier()
    assert tensor.item() == size - 1
    dist.destroy_process_group()


def test_survivors_shrink_a_served_group_which_keeps_its_name(job):
    job(3, lost, bare=True, environment=AS_GLOO, dying=(1,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("train_lightning", "lightning"),
        ("train_accelerate", "accelerate"),
        ("train_transformers", "transformers"),
    ],
)
def test_a_library_that_names_gloo_trains_over_slackline(name, library, tmp_path):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; pip install 'slackline-torch[programs]' does it")
    path = PROGRAMS / f"{name}.py"
    code, out, err = command("--as", "gloo", "--ranks", 2, path, directory=tmp_path)
    assert code == 0, err
    first, last, alike, through = out.splitlines()[-4:]
    assert alike == "parameters alike: True"
    assert through == "gloo through slackline"
    assert 0 < float(last.removeprefix("last loss ")) < float(first.removeprefix("first loss ")) / 2
