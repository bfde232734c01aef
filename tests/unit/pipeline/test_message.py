"""Tests that messages describe their tensors and restore them unchanged."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slackline.errors import InternalError, UsageError
from slackline.pipeline._message import (
    HEADER_BYTES,
    Header,
    layout_of,
    pack,
    read_header,
    unpack,
    write_header,
)

TYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.complex64]


def through(tensors):
    layout = layout_of(tensors, "stage 0, F0")
    header = Header(123, 4, 5, layout)
    buffer = torch.zeros(HEADER_BYTES + layout.body_bytes, dtype=torch.uint8)
    write_header(buffer.data_ptr(), header)
    pack(buffer, HEADER_BYTES, layout, tensors)
    found = read_header(buffer.data_ptr())
    assert found == header
    return unpack(buffer, HEADER_BYTES, found.layout)


@given(
    st.lists(st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=4)), max_size=4)
)
def test_tensors_of_any_type_and_shape_come_back(kinds):
    tensors = [(10 * torch.randn(shape)).to(dtype) for dtype, shape in kinds]
    for got, sent in zip(through(tensors), tensors, strict=True):
        assert got.dtype == sent.dtype
        assert torch.equal(got, sent)


def test_the_order_in_memory_is_kept_where_there_is_one():
    dense = torch.randn(4, 6, 5).permute(2, 0, 1)
    sparse = torch.randn(4, 6)[:, ::2]
    got = through([dense, sparse])
    assert [each.stride() for each in got] == [dense.stride(), (3, 1)]
    assert torch.equal(got[0], dense)
    assert torch.equal(got[1], sparse)


def test_a_gradient_that_is_not_there_takes_no_place():
    got = through([None, torch.ones(2), None])
    assert [each is None for each in got] == [True, False, True]


def test_whether_a_gradient_is_wanted_goes_along():
    layout = layout_of([torch.ones(1, requires_grad=True), torch.ones(1)], "stage 0, F0")
    assert [each.needs_grad for each in layout.entries] == [True, False]


def test_what_cannot_be_sent_is_named():
    def refusal(tensors):
        with pytest.raises(UsageError) as caught:
            layout_of(tensors, "stage 2, F1")
        return str(caught.value)

    assert refusal([1]) == "stage 2, F1: output 0 must be a tensor, not a int"
    sparse = torch.ones(2).to_sparse()
    assert refusal([sparse]) == "stage 2, F1: tensor 0 must be dense, not torch.sparse_coo"
    small = torch.ones(1).to(torch.float8_e4m3fn)
    assert refusal([small]) == (
        "stage 2, F1: tensor 0 is torch.float8_e4m3fn, which cannot be sent"
    )
    assert refusal([torch.ones(1, 1, 1)] * 20) == (
        "stage 2, F1: the shapes of 20 tensors need 1488 bytes, "
        "but the header of a message has 1024"
    )


def test_bytes_that_are_no_message_are_refused():
    nothing = torch.zeros(HEADER_BYTES, dtype=torch.uint8)
    with pytest.raises(InternalError, match=r"^a pipeline message begins with 0x0, not 0x"):
        read_header(nothing.data_ptr())
