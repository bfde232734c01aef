// Questions about the steps that the segments of an operation still have to pass.
#pragma once

#include "request.h"

namespace slackline {

// Return whether the rest of `request` depends on `rank`: the request still sends to it, or still
// lacks data from it.
bool needs(const Request& request, int rank);
// Return whether `request` sends anything to `rank`.
bool sends_to(const Request& request, int rank);

}  // namespace slackline
