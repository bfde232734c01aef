"""Two trainings that part for a planted cause: `slackline bisect` names the place and the cause."""

import os

import pytest
import torch
from torch import nn, optim

from slackline.bits import Evidence, bisect, compare
from slackline.cli import main
from slackline.overlap import DataParallel


class Net(nn.Module):
    """A network whose LayerNorm adds the gradients of its weights by thread."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 64)
        self.norm = nn.LayerNorm(64)
        self.last = nn.Linear(64, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def train(rank, size):
    plant = os.environ.get("PLANT", "")
    torch.set_num_threads(2 if plant == "threads" else 1)
    torch.manual_seed(2)
    model = Net()
    at = {"step": 0, "part": 0}

    def flip(grad):
        if plant == "flip" and at == {"step": 3, "part": 5}:
            grad = grad.clone()
            grad.view(-1)[:1].view(torch.uint8)[2] ^= 1  # a lower bit may be rounded away
        return grad

    model.norm.bias.register_hook(flip)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    if plant == "optimizer":
        optimizer = optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    data = torch.randn(8192, 16, generator=torch.Generator().manual_seed(4))
    with DataParallel(model, optimizer, virtual_ranks=8, seed=3) as parallel:
        for step in range(6):
            for part in parallel.parts(step):
                with part:
                    at.update(step=step, part=part.number)
                    parallel(data[part.indices(len(data), batch=4096)]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture
def run(job, tmp_path):
    def run(size, plant="", recorded="all"):
        folder = tmp_path / f"{plant or 'sound'}-{size}"
        environment = {"SLACKLINE_TELEMETRY": str(folder), "PLANT": plant}
        if recorded:
            environment["SLACKLINE_TENSOR_HASHES"] = recorded
        job(size, train, environment=environment)
        return folder

    return run


def read(folder):
    return Evidence(folder, pytest.fail)


def test_equal_runs_on_other_numbers_of_ranks_do_not_part(run, capsys):
    one, other = run(1, recorded=""), run(3, recorded="")
    assert main(["certify", str(one), str(other)]) == 0
    assert capsys.readouterr().out == "equal in all 6 steps of which both runs have a hash\n"
    assert main(["bisect", str(one), str(other)]) == 0
    assert capsys.readouterr().out == "no difference in the 6 steps of both runs\n"


def test_a_bit_flipped_in_one_gradient_is_found(run, capsys):
    one, other = run(2), run(3, "flip")
    found = bisect(read(one), read(other))
    assert (found.comparison.last_equal, found.comparison.first_different) == (2, 3)
    assert (found.what, found.virtual_rank, found.tensor) == ("gradients", 5, "norm.bias")
    # Virtual rank 5 is the second rank's of two, and the second one's of three.
    assert (found.differing, found.tensors, found.ranks, found.conditions) == (1, 6, (1, 1), ())
    assert main(["bisect", str(one), str(other)]) == 1
    assert capsys.readouterr().out == (
        "The runs differ after step 3, and equal after step 2.\n"
        "First other bits: the gradient norm.bias of virtual rank 5, on rank 1 (1 of 6 differ).\n"
        "They arise in the computation of this virtual rank: its samples, random numbers and "
        "kernels.\n"
        "No recorded condition differs.\n"
    )


def test_another_number_of_threads_is_found(run):
    found = bisect(read(run(1)), read(run(1, "threads")))
    assert (found.comparison.first_different, found.what) == (0, "gradients")
    assert found.tensor.startswith(("norm.", "last.", "first."))
    assert found.conditions == (("threads", "1", "2"),)


def test_another_implementation_of_the_optimizer_is_found(run):
    found = bisect(read(run(2)), read(run(2, "optimizer")))
    assert (found.what, found.virtual_rank) == ("state", -1)
    ((name, one, other),) = found.conditions
    assert (name, "foreach=True" in one, "fused=True" in other) == ("optimizer 0", True, True)


def test_without_hashes_of_tensors_the_command_says_how_to_record_them(run, capsys):
    one, other = run(1, recorded="0-1"), run(2, "flip", recorded="")
    assert compare(read(one), read(other)).first_different == 3
    assert main(["bisect", str(one), str(other)]) == 1
    assert "run both again with SLACKLINE_TENSOR_HASHES=3" in capsys.readouterr().out
