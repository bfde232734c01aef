// The headers of the frames that concern an operation, and the operation that a header belongs to.
#pragma once

#include <cstdint>

#include "request.h"
#include "slackline/wire.h"

namespace slackline {

// Return a header of this kind whose other fields are zero.
wire::Header blank_header(wire::FrameKind kind);
// Return a header of this kind with the fields that all frames of the request have.
wire::Header header_for(const Request& request, wire::FrameKind kind);
// Return the value of the field `total` in DATA frames of the chunk: bytes, and for a sum in a tree
// above them the tree's checksum, so that ranks with different trees notice.
std::uint64_t total_for(const Request& request, const Chunk& chunk);
// The same for a frame of no chunk.
std::uint64_t total_for(const Request& request);
// Return the bytes in the field `total` of a DATA frame.
std::uint64_t bytes_of(const wire::Header& header);
// Return the tree's checksum in the field `total` of a DATA frame; 0 for a sum in no tree.
std::uint16_t digest_of(const wire::Header& header);
inline constexpr unsigned kTotalBits = 48;
// Return the identity of the operation that a frame with this header belongs to.
Key key_of(const wire::Header& header);

}  // namespace slackline
