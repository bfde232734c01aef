// The texts that describe operations, and the failures that follow from a comparison.
#pragma once

#include <cstddef>
#include <string>

#include "group.h"
#include "memory.h"
#include "slackline/failure.h"
#include "slackline/wire.h"

namespace slackline {

// Return the words by which messages name an operation: its kind, element type and size.
std::string describe(const Request& request);
// Return the failure for a frame that does not fit the operation of the same identity here.
Failure mismatch(const Request& request, const wire::Header& header);
// Return the failure for data of an operation that this rank has finished without the data. The
// sender must have posted a different operation.
Failure stray(const Group& group, const wire::Header& header);
// Return the failure of an operation for whose `what` of `bytes` bytes the arena has no room.
Failure no_room(const Request& request, const Memory& memory, std::size_t bytes, const char* what);

}  // namespace slackline
