#include "rail_watch.h"

#include <algorithm>

#include "link.h"

namespace slackline {
namespace {

constexpr std::int64_t kProbeNs = 50'000'000;
constexpr std::int64_t kSlowestProbeNs = 500'000'000;
constexpr int kProbedRails = 8;

}  // namespace

void RailWatch::add(const Link& link, int rail, const WireRail& wire) {
  sleep_.loop().watch_rail(wire.fd(), link.index(), rail);
  ++rails_;
  if (wire.far()) ++far_rails_;
}

void RailWatch::remove(const WireRail& wire) {
  sleep_.loop().unwatch(wire.fd());
  --rails_;
  if (wire.far()) --far_rails_;
}

void RailWatch::add_process(const Link& link, int fd) {
  sleep_.loop().watch_control(fd, link.index());
}

void RailWatch::watch_room(const Link& link, int rail, WireRail& wire) {
  if (wire.blocked() == wire.armed_for_write) return;
  wire.armed_for_write = wire.blocked();
  sleep_.loop().watch_room(wire.fd(), link.index(), rail, wire.blocked());
}

std::int64_t RailWatch::probe_pause_ns() const {
  return std::clamp(kProbeNs * rails_ / kProbedRails, kProbeNs, kSlowestProbeNs);
}

}  // namespace slackline
