// The Python binding of the descriptions of operations that have not ended or that have failed.
#include "../src/engine/open_operations.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "operations.h"

namespace nb = nanobind;

namespace slackline {
namespace {

const char* name_of(PartState state) {
  constexpr std::array<const char*, 3> kNames = {"silent", "begun", "taking"};
  return kNames[static_cast<std::size_t>(state)];
}

}  // namespace

void bind_open_operations(nb::module_& m) {
  nb::class_<OpenOperation>(m, "OpenOperation",
                            "An operation that has not ended or has failed. Its kind, size and "
                            "number are those of slackline.records.Operation.")
      .def_prop_ro("collective", [](const OpenOperation& o) { return o.record.collective; })
      .def_prop_ro("receives", [](const OpenOperation& o) { return o.record.receives; })
      .def_prop_ro("peer", [](const OpenOperation& o) { return o.record.peer; })
      .def_prop_ro("bytes", [](const OpenOperation& o) { return o.record.bytes; })
      .def_prop_ro("group", [](const OpenOperation& o) { return o.record.epoch; })
      .def_prop_ro("tag", [](const OpenOperation& o) { return o.record.tag; })
      .def_prop_ro("sequence", [](const OpenOperation& o) { return o.record.sequence; })
      .def_prop_ro("internal", [](const OpenOperation& o) { return o.record.internal; })
      .def_prop_ro("plan", [](const OpenOperation& o) { return o.record.plan; })
      .def_prop_ro("posted_ns", [](const OpenOperation& o) { return o.record.posted_ns; })
      .def_ro("usual_ns", &OpenOperation::usual_ns,
              "The mean duration of earlier ones like it; 0 for the first.")
      .def_prop_ro(
          "missing",
          [](const OpenOperation& o) {
            std::vector<std::tuple<int, std::string>> parts;
            for (const MissingPart& part : o.missing)
              parts.emplace_back(part.rank, name_of(part.state));
            return parts;
          },
          "The ranks of the group whose parts are missing: \"silent\" without any frame of the "
          "operation, \"begun\" with some, \"taking\" if data for the rank are not confirmed.")
      .def_ro("waits_for", &OpenOperation::waits_for,
              "The missing parts in words; empty for a failed operation.")
      .def_ro("refused", &OpenOperation::refused,
              "Whether it failed when it was posted, before any data moved.")
      .def_prop_ro(
          "failure",
          [](const OpenOperation& o) -> std::optional<FailureTuple> {
            if (!o.failure) return std::nullopt;
            return to_tuple(o.failure);
          },
          "The failure, a tuple as Request.failure returns; None for a pending operation.")
      .def_prop_ro(
          "departure",
          [](const OpenOperation& o) {
            switch (o.failure.departure) {
              case Departure::kClosed:
                return "closed";
              case Departure::kAborted:
                return "aborted";
              case Departure::kNone:
                break;
            }
            return "";
          },
          "How the peer left the group: closed, aborted, or empty if lost.");
}

}  // namespace slackline
