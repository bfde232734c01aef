"""Tests of the gallery's examples over torch's own wrappers: losses fall, and ranks agree."""

import re

import pytest
from example_ranks import asked, example


def prepare():
    """Import the modules that the examples import."""
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel  # noqa: F401


def program(rank, size, path):
    return example(rank, size, path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fall", "agreed"),
    [
        ("ddp_gpt", 2, ["parameters of 2 ranks: equal bits"]),
        ("fsdp2_gpt", 2, ["rank 0 of 2 keeps 67520 of 135040 parameters"]),
        (
            "tensor_parallel",
            20,
            [
                "losses of 2 ranks: equal bits",
                "rank 0 has 64 of 128 columns of a block's first layer",
            ],
        ),
    ],
)
def test_an_example_of_the_gallery_learns_and_its_ranks_agree(job, store, name, fall, agreed):
    environment = asked(store, f"{name}.py")
    (first, message), other = job(2, program, bare=True, environment=environment)
    assert (message, other) == ("", ["", ""])
    losses, *said = first.splitlines()
    found = re.fullmatch(r"loss (\d+\.\d+), then (\d+\.\d+)", losses)
    assert found is not None, first
    assert 0 < float(found[2]) < float(found[1]) / fall
    assert said == agreed
