#include "slackline/wire.h"

#include <cstring>

#include "check.h"

namespace wire = slackline::wire;

TEST("a header of zeros has its fields where the table puts them") {
  unsigned char bytes[wire::kHeaderBytes] = {};
  bytes[16] = 7;  // tag
  bytes[61] = 1;  // header_checksum
  wire::Header header;
  std::memcpy(&header, bytes, sizeof header);
  CHECK_EQUAL(header.tag, 7u);
  CHECK_EQUAL(header.header_checksum, 256u);
}

TEST("item_size knows every type and gives 0 for none") {
  CHECK_EQUAL(wire::item_size(wire::DType::kBfloat16), 2u);
  CHECK_EQUAL(wire::item_size(wire::DType::kBool), 1u);
  CHECK_EQUAL(wire::item_size(static_cast<wire::DType>(0)), 0u);
}
