"""Tests that a batch is cut into microbatches as torch cuts it."""

import pytest
import torch
from torch.distributed.pipelining.microbatch import split_args_kwargs_into_chunks

from slackline.errors import UsageError
from slackline.pipeline._batches import split

X, Y = torch.arange(14.0).view(7, 2), torch.arange(7)


@pytest.mark.parametrize("arguments", [(X,), (X, Y), (X, 2), (X, [Y, "text"])])
def test_each_microbatch_has_the_rows_that_torch_gives_it(arguments):
    found = split(arguments, {}, Y, 3, loss_keywords={})
    wanted, _ = split_args_kwargs_into_chunks(arguments, {}, 3)
    for mine, theirs in zip(found.arguments, wanted, strict=True):
        assert torch.equal(mine[0], theirs[0])
        assert str(mine) == str(theirs)
    assert found.keywords == [{}, {}, {}]
    assert [each.tolist() for each in found.targets] == [[0, 1, 2], [3, 4], [5, 6]]


def test_microbatches_share_the_memory_of_the_batch():
    found = split((X,), {}, None, 7, loss_keywords={})
    assert [each.data_ptr() for (each,) in found.arguments] == [row.data_ptr() for row in X]


def test_a_batch_that_is_too_small_is_refused():
    refusal = r"^a batch of shape \[7, 2\] gives 7 microbatches, not 8$"
    with pytest.raises(UsageError, match=refusal):
        split((X,), {}, None, 8, loss_keywords={})
