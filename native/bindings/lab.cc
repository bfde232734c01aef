// The Python binding of the lab's switch.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "../src/lab/switch.h"
#include "bind.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace slackline {
namespace {

using lab::PathCounters;
using lab::Switch;

// The fault of one path: from, to, nic, delay_ns, jitter_ns, rate (bytes per second), loss,
// duplicate, reorder, corrupt, down, seed.
using Path = std::tuple<int, int, int, std::int64_t, std::int64_t, std::uint64_t, double, double,
                        double, double, bool, std::uint64_t>;
// The fault of one port: host, nic, rate (bytes per second), down.
using Port = std::tuple<int, int, std::uint64_t, bool>;

void apply(Switch& self, const std::vector<Path>& paths, const std::vector<Port>& ports) {
  std::vector<lab::PathFault> path_faults;
  for (const auto& [from, to, nic, delay_ns, jitter_ns, rate, loss, duplicate, reorder, corrupt,
                    down, seed] : paths) {
    FaultState state{.delay_ns = delay_ns,
                     .jitter_ns = jitter_ns,
                     .rate = rate,
                     .loss = loss,
                     .duplicate = duplicate,
                     .reorder = reorder,
                     .corrupt = corrupt,
                     .down = down,
                     .seed = seed};
    path_faults.push_back({from, to, nic, state});
  }
  std::vector<lab::PortFault> port_faults;
  for (const auto& [host, nic, rate, down] : ports) port_faults.push_back({host, nic, rate, down});
  const nb::gil_scoped_release release;
  self.apply(path_faults, port_faults);
}

}  // namespace

void bind_lab(nb::module_& module) {
  nb::class_<PathCounters>(module, "PathCounters")
      .def_ro("source", &PathCounters::from)
      .def_ro("target", &PathCounters::to)
      .def_ro("nic", &PathCounters::nic)
      .def_ro("frames", &PathCounters::frames)
      .def_ro("bytes", &PathCounters::bytes)
      .def_ro("lost", &PathCounters::lost)
      .def_ro("duplicated", &PathCounters::duplicated)
      .def_ro("reordered", &PathCounters::reordered)
      .def_ro("corrupted", &PathCounters::corrupted)
      .def_ro("unplugged", &PathCounters::unplugged)
      .def_ro("overflowed", &PathCounters::overflowed);

  nb::class_<Switch>(module, "Switch")
      .def(nb::init<int, int, std::uint64_t>(), "hosts"_a, "nics"_a, "rate"_a,
           "`rate` is in bytes per second to each NIC; 0 means no limit.")
      .def("add_nic", &Switch::add_nic, "namespace_path"_a, "name"_a,
           "Create a NIC in its host's network namespace. All NICs are added host by host before "
           "`run`.")
      .def("run", &Switch::run, nb::call_guard<nb::gil_scoped_release>(),
           "Forward frames until `stop`, or until a host's namespace has gone.")
      .def("stop", &Switch::stop)
      .def("apply", &apply, "paths"_a, "ports"_a,
           "Replace all faults by these: paths (from, to, nic, delay_ns, jitter_ns, rate, loss, "
           "duplicate, reorder, corrupt, down, seed) and ports (host, nic, rate, down). Rates are "
           "in bytes per second; 0 means no limit.")
      .def("counters", &Switch::counters, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("refused", &Switch::refused);
}

}  // namespace slackline
