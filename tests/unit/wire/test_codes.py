from slackline.wire import Collective, DType, FrameFlag, FrameKind, ReduceOp, cpp_header


def test_every_type_knows_its_size() -> None:
    assert {dtype.itemsize for dtype in DType} == {1, 2, 4, 8}
    assert all(str(8 * dtype.itemsize) in dtype.name for dtype in DType if dtype != DType.BOOL)


def test_every_code_fits_its_place_in_the_header() -> None:
    assert max(Collective) < 16
    assert max(ReduceOp) < 16
    assert max(FrameKind) < 256
    assert max(FrameFlag) < 256


def test_the_cpp_header_has_every_code() -> None:
    text = cpp_header()
    assert "  kBfloat16 = 4," in text
    assert "  kAllReduce = 1," in text
    assert "inline constexpr std::uint16_t kFlagPartial = 1;" in text
    assert "static_assert(offsetof(Header, header_checksum) == 60);" in text
