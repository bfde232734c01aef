"""Tests that ranks whose kernels give other bits are refused, by name."""

import pytest

from slackline._native import kernel_fingerprints
from slackline.errors import UsageError
from slackline.nic.connect._rendezvous import check_kernels, kernel_checksums
from slackline.wire import DType, ReduceOp


def without(*pairs: tuple[DType, ReduceOp]) -> str:
    """Return this process's checksums, changed for some pairs."""
    return "".join(
        f"{checksum ^ ((dtype, op) in pairs):04x}" for dtype, op, checksum in kernel_fingerprints()
    )


def test_equal_kernels_are_accepted_and_unknown_ones_are_not_compared() -> None:
    check_kernels([kernel_checksums()] * 3, 0)
    check_kernels(["", kernel_checksums(), ""], 0)
    check_kernels(["", ""], 0)


def test_the_error_names_ranks_and_reductions() -> None:
    mine, other = kernel_checksums(), without((DType.BFLOAT16, ReduceOp.AVG))
    with pytest.raises(UsageError) as error:
        check_kernels([mine, other, mine, other], 2)
    assert str(error.value) == (
        "ranks 1, 3 would give other bits than rank 0: AVG of bfloat16: install the same build of "
        "slackline on every host"
    )
    assert (error.value.rank, error.value.peer) == (2, 1)


def test_a_long_list_of_reductions_is_shortened() -> None:
    pairs = [(dtype, ReduceOp.SUM) for dtype in (DType.FLOAT32, DType.FLOAT64)]
    pairs += [(dtype, ReduceOp.PROD) for dtype in (DType.FLOAT32, DType.FLOAT64)]
    with pytest.raises(UsageError) as error:
        check_kernels([kernel_checksums(), without(*pairs)], 0)
    assert str(error.value).startswith(
        "rank 1 would give other bits than rank 0: SUM of float32, PROD of float32, SUM of float64 "
        "and 1 more: "
    )


def test_checksums_of_another_length_are_refused_too() -> None:
    with pytest.raises(UsageError, match="rank 1 would give other bits than rank 0: some"):
        check_kernels([kernel_checksums(), "0123"], 0)


def test_every_pair_has_a_checksum() -> None:
    pairs = {(dtype, op) for dtype, op, _ in kernel_fingerprints()}
    assert len(pairs) == len(kernel_fingerprints()) == len(kernel_checksums()) // 4
    assert {dtype for dtype, _ in pairs} == set(DType)
