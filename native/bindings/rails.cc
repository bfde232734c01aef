#include "rails.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "../src/engine/rail_status.h"
#include "../src/rail/stream.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace slackline {

RailKind rail_kind(const std::string& name) {
  if (name == "tcp") return RailKind::kTcp;
  if (name == "udp") return RailKind::kUdp;
  throw std::invalid_argument("a rail's kind must be tcp or udp, not " + name);
}

void bind_rails(nb::module_& m) {
  // The limits of a TCP rail to another host, at a rate that TCP has measured.
  m.def(
      "stream_limits",
      [](std::uint64_t bytes_per_second, bool urgent_expected) {
        return std::tuple(StreamRail::queue_at(bytes_per_second, urgent_expected),
                          StreamRail::unsent_at(bytes_per_second, urgent_expected));
      },
      "bytes_per_second"_a, "urgent_expected"_a,
      "Return the most bytes in the queue and unsent in the socket of a rail.");
  nb::class_<FaultState>(m, "FaultState",
                         "The faults that an engine applies to frames that it sends over a rail.")
      .def(
          "__init__",
          [](FaultState* self, std::int64_t delay_ns, std::int64_t jitter_ns, std::uint64_t rate,
             double loss, double duplicate, double reorder, double corrupt, bool down,
             std::uint64_t seed) {
            new (self) FaultState{delay_ns, jitter_ns, rate, loss, duplicate,
                                  reorder,  corrupt,   down, seed};
          },
          nb::kw_only(), "delay_ns"_a = 0, "jitter_ns"_a = 0, "rate"_a = 0, "loss"_a = 0.0,
          "duplicate"_a = 0.0, "reorder"_a = 0.0, "corrupt"_a = 0.0, "down"_a = false, "seed"_a = 0,
          "`rate` is in bytes per second, 0 for no limit. `loss`, `duplicate`, `reorder` and "
          "`corrupt` are shares of packets from 0 to 1.");
  nb::class_<RailEvent>(m, "RailEvent", "A change of a rail's state.")
      .def_ro("link", &RailEvent::link)
      .def_ro("rail", &RailEvent::rail, "The rail's index in the link; -1 for the link as a whole.")
      .def_ro("what", &RailEvent::what,
              "\"up\", \"suspect\", \"lost\", \"closed\" (the peer has closed its engine in good "
              "order) or "
              "\"down\". For a link as a whole also \"wanted\" (an operation needs the link, which "
              "has no "
              "rail yet), \"left\" (a worker has left its aggregator) and \"abandoned\" (the "
              "engine gives "
              "up the link to an aggregator that has failed).")
      .def_ro("reason", &RailEvent::reason)
      .def_ro("time_ns", &RailEvent::time_ns, "The time of the change by the monotonic clock.");
  nb::class_<RailStatus>(m, "RailStatus", "The state of a rail, and its counts since it began.")
      .def_ro("link", &RailStatus::link)
      .def_ro("rail", &RailStatus::rail)
      .def_ro("kind", &RailStatus::kind, "\"tcp\", \"udp\" or \"shm\".")
      .def_ro("name", &RailStatus::name)
      .def_ro("state", &RailStatus::state, "\"up\", \"suspect\", or \"ended\".")
      .def_prop_ro("bytes_sent", [](const RailStatus& s) { return s.counters.bytes_sent; })
      .def_prop_ro("bytes_received", [](const RailStatus& s) { return s.counters.bytes_received; })
      .def_prop_ro("frames_sent", [](const RailStatus& s) { return s.counters.frames_sent; })
      .def_prop_ro("frames_received",
                   [](const RailStatus& s) { return s.counters.frames_received; })
      .def_prop_ro("packets_sent", [](const RailStatus& s) { return s.counters.packets_sent; })
      .def_prop_ro("packets_resent", [](const RailStatus& s) { return s.counters.packets_resent; })
      .def_prop_ro("packets_refused",
                   [](const RailStatus& s) { return s.counters.packets_refused; })
      .def_ro("frames_resent", &RailStatus::frames_resent)
      .def_ro("queued_bytes", &RailStatus::queued_bytes, "Bytes that are queued in the engine.")
      .def_ro("unconfirmed_bytes", &RailStatus::unconfirmed_bytes,
              "Bytes that are queued, or sent and not yet confirmed by the peer.")
      .def_ro("confirmed_bytes", &RailStatus::confirmed_bytes)
      .def_ro("busy_ns", &RailStatus::busy_ns, "The time during which some data was unconfirmed.")
      .def_ro("round_trip_ns", &RailStatus::round_trip_ns,
              "The smoothed round-trip time; 0 while unknown.")
      .def_prop_ro(
          "probes",
          [](const RailStatus& s) {
            std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>> all;
            for (const Probe& p : s.probes)
              all.emplace_back(p.sent, p.received, p.answered, p.back);
            return all;
          },
          "The latest probes, oldest first, with four times each: sent by this rank, received by "
          "the peer, answered by the peer, answer received by this rank. Times are in ns of each "
          "host's monotonic clock.")
      .def_ro("probe_count", &RailStatus::probe_count,
              "The number of all probes of the rail so far.");
}

}  // namespace slackline
