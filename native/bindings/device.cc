// The Python calls that a device makes: fetch the work of a group, and return the results.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "group.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace slackline {
namespace {

using Post = std::tuple<std::uint64_t, std::uint32_t, int, int, std::uint64_t, std::size_t, int,
                        std::uintptr_t>;
using PostKey = std::pair<std::uint64_t, std::uint32_t>;
using Work =
    std::tuple<std::vector<Post>, std::vector<std::pair<int, nb::bytes>>, std::vector<PostKey>>;

std::optional<Work> device_work(BoundGroup& self) {
  std::optional<DeviceWork> taken;
  {
    const nb::gil_scoped_release others;
    taken = self.engine->roles().device_work(*self.group);
  }
  if (!taken) return std::nullopt;
  Work work;
  auto& [posts, frames, withdrawn] = work;
  for (const DevicePost& p : taken->posts)
    posts.emplace_back(p.key.tag, p.key.chunk, p.start, static_cast<int>(p.dtype), p.total,
                       p.frame_bytes, p.priority, reinterpret_cast<std::uintptr_t>(p.memory));
  for (const DeviceFrame& f : taken->frames)
    frames.emplace_back(f.port, nb::bytes(f.bytes.data(), f.bytes.size()));
  for (const DeviceKey& key : taken->withdrawn) withdrawn.emplace_back(key.tag, key.chunk);
  return work;
}

std::vector<DeviceKey> keys_of(const std::vector<PostKey>& given) {
  std::vector<DeviceKey> keys;
  for (const auto& [tag, chunk] : given) keys.push_back(DeviceKey{tag, chunk});
  return keys;
}

void device_answer(BoundGroup& self, const std::vector<nb::bytes>& frames,
                   const std::vector<PostKey>& completed, const std::vector<PostKey>& released) {
  std::vector<std::span<const std::byte>> spans;
  for (const nb::bytes& frame : frames)
    spans.emplace_back(reinterpret_cast<const std::byte*>(frame.data()), frame.size());
  const nb::gil_scoped_release others;
  self.engine->roles().device_answer(*self.group, spans, keys_of(completed), keys_of(released));
}

}  // namespace

void bind_device(nb::class_<BoundGroup>& group) {
  group
      .def(
          "attach",
          [](BoundGroup& self, std::string name) {
            self.engine->roles().attach(*self.group, std::move(name));
          },
          "name"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Attach a device called `name`, which adds for the group where it can. Call it before "
          "the first operation.")
      .def("device_work", &device_work,
           "Block until there is work for the device. Return new operations (tag, chunk, start, "
           "dtype, total, frame bytes, priority, address), frames (port, bytes), and the (tag, "
           "chunk) of operations that failed; None once the group is closed.")
      .def("device_answer", &device_answer, "frames"_a, "completed"_a, "released"_a,
           "Pass on the device's results: frames to send, in order; the (tag, chunk) of completed "
           "operations; the (tag, chunk) of failed operations whose memory the device no longer "
           "uses. Raises ValueError for an impossible result.")
      .def(
          "device_closed",
          [](BoundGroup& self) { self.engine->roles().device_closed(*self.group); },
          nb::call_guard<nb::gil_scoped_release>(),
          "State, after the last device_work(), that the device is closed and uses no memory any "
          "more.")
      .def(
          "device_failed",
          [](BoundGroup& self, const std::string& reason) {
            self.engine->roles().device_failed(*self.group, reason);
          },
          "reason"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Fail the group on every rank because its device will not answer any more.");
}

}  // namespace slackline
