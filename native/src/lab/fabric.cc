#include "fabric.h"

#include <algorithm>
#include <tuple>

namespace slackline::lab {
namespace {

bool same(const FaultState& a, const FaultState& b) {
  const auto all = [](const FaultState& s) {
    return std::tie(s.delay_ns, s.jitter_ns, s.rate, s.loss, s.duplicate, s.reorder, s.corrupt,
                    s.down, s.seed);
  };
  return all(a) == all(b);
}

// Return whether the fault must hit single packets. A super-frame may be delayed and may wait at a
// port, but other faults apply to packets.
bool wants_packets(const FaultState& state) {
  return state.jitter_ns > 0 || state.rate > 0 || state.loss > 0 || state.duplicate > 0 ||
         state.reorder > 0 || state.corrupt > 0;
}

// Return a random seed of the path's own, derived from the fault's seed.
std::uint64_t seed_of(const PathFault& fault) {
  std::uint64_t seed = fault.state.seed;
  for (const int part : {fault.from, fault.to, fault.nic})
    seed = (seed ^ static_cast<std::uint64_t>(part + 1)) * 0x9E3779B97F4A7C15ull;
  return seed;
}

}  // namespace

std::optional<std::int64_t> Pipe::pass(std::int64_t now_ns, std::size_t bytes) {
  if (rate_ == 0) return now_ns;
  const auto ns = [&](std::uint64_t count) {
    return static_cast<std::int64_t>(static_cast<double>(count) * 1e9 / static_cast<double>(rate_));
  };
  const std::int64_t begin_ns = std::max(now_ns, free_ns_);
  if (begin_ns - now_ns > std::max(kRoomNs, ns(kRoomBytes))) return std::nullopt;
  free_ns_ = begin_ns + ns(bytes);
  return free_ns_;
}

Fabric::Fabric(int hosts, int nics, std::uint64_t rate, Outlet& outlet)
    : hosts_(hosts), nics_(nics), rate_(rate), outlet_(outlet) {
  ports_.resize(static_cast<std::size_t>(hosts) * nics);
  paths_.resize(static_cast<std::size_t>(hosts) * hosts * nics);
  for (Port& each : ports_) each.pipe.set_rate(rate_);
}

Fabric::Path& Fabric::path(int from, int to, int nic) {
  auto& slot = paths_[port(from, nic) * hosts_ + to];
  if (slot == nullptr) {
    slot = std::make_unique<Path>();
    slot->counters = {.from = from, .to = to, .nic = nic};
  }
  return *slot;
}

void Fabric::apply(const std::vector<PathFault>& paths, const std::vector<PortFault>& ports) {
  for (Port& each : ports_) {
    each.pipe.set_rate(rate_);
    each.down = each.single = false;
  }
  for (const PortFault& fault : ports) {
    Port& at = ports_[port(fault.host, fault.nic)];
    at.down = fault.down;
    if (fault.rate > 0) at.pipe.set_rate(rate_ > 0 ? std::min(rate_, fault.rate) : fault.rate);
  }
  std::vector<const Path*> named;
  for (const PathFault& fault : paths) {
    Path& at = path(fault.from, fault.to, fault.nic);
    named.push_back(&at);
    if (wants_packets(fault.state)) ports_[port(fault.from, fault.nic)].single = true;
    if (same(at.state, fault.state) && at.injector) continue;
    at.state = fault.state;
    at.pipe.set_rate(fault.state.rate);
    FaultState lots = fault.state;
    lots.rate = 0;  // the pipe applies the rate
    lots.down = false;
    lots.seed = seed_of(fault);
    at.injector.emplace(lots);
  }
  std::sort(named.begin(), named.end());
  for (const auto& slot : paths_) {
    if (slot == nullptr || std::binary_search(named.begin(), named.end(), slot.get())) continue;
    slot->state = {};
    slot->pipe.set_rate(0);
    slot->injector.reset();
  }
}

void Fabric::arrive(std::int64_t now_ns, int from, int nic, Frame frame) {
  if (frame.size() < kHeadBytes) return;
  if (is_group_address(frame)) {
    for (int to = 0; to < hosts_; ++to)
      if (to != from) forward(now_ns, path(from, to, nic), frame);
    return;
  }
  const std::optional<int> to = target_of(frame, nic);
  if (to && *to < hosts_ && *to != from) forward(now_ns, path(from, *to, nic), frame);
}

void Fabric::forward(std::int64_t now_ns, Path& path, Frame frame) {
  PathCounters& counters = path.counters;
  const std::size_t bytes = wire_bytes(frame);
  ++counters.frames;
  counters.bytes += bytes;
  if (path.state.down || down(counters.from, counters.nic) || down(counters.to, counters.nic)) {
    ++counters.unplugged;
    return;
  }
  const std::optional<std::int64_t> passed_ns = path.pipe.pass(now_ns, bytes);
  if (!passed_ns) {
    ++counters.overflowed;
    return;
  }
  Injector::Decision decision;
  decision.release_ns = *passed_ns;
  std::optional<std::size_t> spoiled;
  if (path.injector && offloaded(frame) && wants_packets(path.state)) {
    // The super-frame left its host's stack before this fault was set, so only the delay applies.
    decision.release_ns += path.state.delay_ns;
  } else if (path.injector) {
    decision = path.injector->decide(*passed_ns, bytes);
    if (decision.corrupt) {
      const Range range = payload_of(frame);
      spoiled = range.begin * 8 + path.injector->place((range.end - range.begin) * 8);
    }
  }
  if (decision.drop) {
    ++counters.lost;
    return;
  }
  std::int64_t at_ns = std::max(decision.release_ns, path.last_ns);
  if (decision.overtaken) {
    ++counters.reordered;
  } else {
    path.last_ns = at_ns;
  }
  if (spoiled) {
    ++counters.corrupted;
    flip_bit(frame, *spoiled);
  }
  counters.duplicated += static_cast<std::uint64_t>(decision.copies - 1);
  for (int copy = 0; copy < decision.copies; ++copy) {
    if (at_ns <= now_ns) {
      at_port(now_ns, path, frame, nullptr);
    } else {
      wait(at_ns, path, false, frame, nullptr);
    }
  }
  if (spoiled) flip_bit(frame, *spoiled);
}

void Fabric::at_port(std::int64_t now_ns, Path& path, ConstFrame frame,
                     std::unique_ptr<std::byte[]> owned) {
  Pipe& pipe = ports_[port(path.counters.to, path.counters.nic)].pipe;
  const std::optional<std::int64_t> at_ns = pipe.pass(now_ns, wire_bytes(frame));
  if (!at_ns) {
    ++path.counters.overflowed;
  } else if (*at_ns <= now_ns) {
    deliver(path, frame);
  } else {
    wait(*at_ns, path, true, frame, std::move(owned));
  }
}

void Fabric::deliver(Path& path, ConstFrame frame) {
  if (down(path.counters.to, path.counters.nic)) {
    ++path.counters.unplugged;
  } else {
    outlet_.deliver(path.counters.to, path.counters.nic, frame);
  }
}

void Fabric::wait(std::int64_t at_ns, Path& path, bool passed_port, ConstFrame frame,
                  std::unique_ptr<std::byte[]> owned) {
  if (owned == nullptr) {
    owned = std::make_unique_for_overwrite<std::byte[]>(frame.size());
    std::memcpy(owned.get(), frame.data(), frame.size());
  }
  waiting_.push_back({at_ns, number_++, &path, passed_port, std::move(owned), frame.size()});
  std::push_heap(waiting_.begin(), waiting_.end());
}

void Fabric::release(std::int64_t now_ns) {
  while (due_ns() <= now_ns) {
    std::pop_heap(waiting_.begin(), waiting_.end());
    Waiting next = std::move(waiting_.back());
    waiting_.pop_back();
    const ConstFrame frame(next.bytes.get(), next.length);
    if (next.passed_port) {
      deliver(*next.path, frame);
    } else {  // use the frame's due time, not the time of a late call
      at_port(next.at_ns, *next.path, frame, std::move(next.bytes));
    }
  }
}

std::vector<PathCounters> Fabric::counters() const {
  std::vector<PathCounters> found;
  for (const auto& slot : paths_)
    if (slot != nullptr && slot->counters.frames > 0) found.push_back(slot->counters);
  return found;
}

}  // namespace slackline::lab
