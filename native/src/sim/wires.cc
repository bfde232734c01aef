#include "wires.h"

#include <algorithm>
#include <numeric>

namespace slackline::sim {
namespace {

std::uint64_t share(std::uint64_t bytes, std::uint64_t part, std::uint64_t whole) {
  const auto product = static_cast<unsigned __int128>(bytes) * part;
  return static_cast<std::uint64_t>((product + whole - 1) / whole);
}

}  // namespace

Wires::Wires(Clock& clock, const Fabric& fabric, Faults* faults, FrameEnds& ends)
    : sent_bytes(fabric.hosts.size()),
      received_bytes(fabric.hosts.size()),
      clock_(clock),
      fabric_(fabric),
      faults_(faults),
      ends_(ends),
      nics_(fabric.nics()),
      queues_(fabric.hosts.size()),
      lanes_(fabric.hosts.size()),
      taken_(fabric.hosts.size() * nics_),
      by_rate_(fabric.hosts.size() * nics_),
      idle_(fabric.hosts.size() * nics_, 1),
      rates_bps_(fabric.hosts.size() * nics_),
      sends_until_(fabric.hosts.size() * nics_),
      receives_until_(fabric.hosts.size() * nics_),
      memory_until_(fabric.hosts.size()) {
  for (std::uint32_t host = 0; host < fabric.hosts.size(); ++host) {
    const std::vector<std::uint64_t>& rates = fabric.hosts[host].rates_bps;
    std::copy(rates.begin(), rates.end(), rates_bps_.begin() + port(host, 0));
    const auto first = by_rate_.begin() + port(host, 0);
    std::iota(first, first + nics_, 0u);
    std::stable_sort(first, first + nics_,
                     [&rates](std::uint32_t a, std::uint32_t b) { return rates[a] > rates[b]; });
  }
}

void Wires::send(std::uint32_t number) {
  ++sent_frames;
  Frame& frame = frames[number];
  if (!frame.crosses_network) {
    copy(number);
    return;
  }
  frame.packets = fabric_.framing.packets(frame.payload_bytes);
  queue(piece_of(number, frame.packets, fabric_.framing.wire_bytes(frame.payload_bytes), false));
}

void Wires::set_rate(std::uint32_t host, std::uint32_t nic, std::uint64_t rate_bps) {
  rates_bps_[port(host, nic)] = rate_bps;
}

void Wires::change() {
  states_.clear();
  for (auto& [way, pieces] : under_way_) {
    if (!state(way).down) continue;
    for (const std::uint32_t lost : pieces) {
      pieces_[lost].lost = true;
      const Piece piece = pieces_[lost];
      resent_packets += piece.packets;
      const std::uint32_t again = piece_of(piece.frame, piece.packets, piece.wire_bytes, true);
      schedule(after(clock_.now(), fabric_.resend), EventKind::kQueue, again);
    }
    pieces.clear();
  }
  for (std::uint32_t host = 0; host < queues_.size(); ++host)
    if (!queues_[host].empty() && has_idle(host)) start(host);
  for (std::uint32_t host = 0; host < lanes_.size(); ++host)
    for (const auto& [target, lane] : lanes_[host]) take_ahead(host, target);
}

void Wires::act(const Event& event) {
  switch (event.kind) {
    case EventKind::kLeft:
      left(event.index);
      break;
    case EventKind::kAtSwitch:
      at_switch(event.index, event.argument);
      break;
    case EventKind::kAtPort:
      at_port(event.index, event.argument);
      break;
    case EventKind::kArrived:
      arrived(event.index);
      break;
    case EventKind::kQueue:
      queue(event.index);
      break;
    case EventKind::kCopied:
      ends_.frame_sent(event.index);
      return;
    default:
      ends_.frame_arrived(event.index);
      return;
  }
  drop(event.index);
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> Wires::waiting() const {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
  for (std::size_t host = 0; host < queues_.size(); ++host) {
    std::vector<Waiting> queue = queues_[host];
    for (const auto& [target, lane] : lanes_[host])
      queue.insert(queue.end(), lane.queue.begin(), lane.queue.end());
    std::sort(queue.begin(), queue.end(),
              [](const Waiting& a, const Waiting& b) { return Waiting::follows(b, a); });
    for (const Waiting& entry : queue) {
      const Frame& frame = frames[pieces_[entry.piece].frame];
      found.emplace_back(frame.source, frame.target);
    }
  }
  return found;
}

std::uint32_t Wires::piece_of(std::uint32_t frame, std::uint64_t packets, std::uint64_t wire_bytes,
                              bool again) {
  return pieces_.add(Piece{.packets = packets,
                           .wire_bytes = wire_bytes,
                           .doubled = 0,
                           .taken_bytes = 0,
                           .frame = frame,
                           .nic = 0,
                           .target = frames[frame].target,
                           .events = 0,
                           .again = again,
                           .lost = false});
}

void Wires::schedule(Time time, EventKind kind, std::uint32_t piece, std::int64_t argument) {
  ++pieces_[piece].events;
  clock_.at(time, kind, piece, argument);
}

void Wires::drop(std::uint32_t piece) {
  if (--pieces_[piece].events == 0) pieces_.release(piece);
}

Path Wires::path(const Piece& piece) const {
  const Frame& frame = frames[piece.frame];
  return Path{frame.source, frame.target, piece.nic};
}

void Wires::copy(std::uint32_t number) {
  const Frame& frame = frames[number];
  const Host& host = fabric_.hosts[frame.source];
  Time start = std::max(clock_.now(), memory_until_[frame.source]);
  if (host.memory_bytes_per_second != 0)
    start = after(start, transmission(frame.payload_bytes, 8 * host.memory_bytes_per_second));
  memory_until_[frame.source] = start;
  clock_.at(start, EventKind::kCopied, number);
  clock_.at(after(start, host.memory_latency), EventKind::kRead, number);
}

void Wires::queue(std::uint32_t piece) {
  const Frame& frame = frames[pieces_[piece].frame];
  const std::uint32_t host = frame.source;
  const bool ahead = fabric_.hosts[host].ahead_bytes != 0;
  ++pieces_[piece].events;
  std::vector<Waiting>& queue = ahead ? lanes_[host][frame.target].queue : queues_[host];
  queue.push_back(Waiting{frame.priority, ++queued_, piece});
  std::push_heap(queue.begin(), queue.end(), Waiting::follows);
  if (ahead) {
    take_ahead(host, frame.target);
  } else if (has_idle(host)) {
    start(host);
  }
}

bool Wires::has_idle(std::uint32_t host) const {
  const auto first = idle_.begin() + port(host, 0);
  return std::find(first, first + nics_, 1) != first + nics_;
}

// Make each idle NIC of the host send the first queued piece (packets of a frame) whose path is up.
void Wires::start(std::uint32_t host) {
  std::vector<Waiting>& queue = queues_[host];
  snapshot_.clear();
  for (std::uint32_t place = 0; place < nics_; ++place) {
    const std::uint32_t nic = by_rate_[port(host, place)];
    if (idle_[port(host, nic)]) snapshot_.push_back(nic);
  }
  for (const std::uint32_t nic : snapshot_) {
    blocked_.clear();
    while (!queue.empty()) {
      std::pop_heap(queue.begin(), queue.end(), Waiting::follows);
      const Waiting entry = queue.back();
      queue.pop_back();
      Piece& piece = pieces_[entry.piece];
      if (faults_ != nullptr && state(Path{host, frames[piece.frame].target, nic}).down) {
        blocked_.push_back(entry);
        continue;
      }
      idle_[port(host, nic)] = 0;
      piece.nic = nic;
      go_under_way(entry.piece);
      transmit(entry.piece);
      drop(entry.piece);
      break;
    }
    for (const Waiting& entry : blocked_) {
      queue.push_back(entry);
      std::push_heap(queue.begin(), queue.end(), Waiting::follows);
    }
  }
}

// Let NICs take the first pieces for a target, as far as `ahead_bytes` allows.
void Wires::take_ahead(std::uint32_t host, std::uint32_t target) {
  Lane& lane = lanes_[host][target];
  lane.ahead.resize(nics_);
  while (!lane.queue.empty()) {
    const std::uint32_t nic = least_ahead(host, target, lane);
    if (nic == nics_) return;
    std::pop_heap(lane.queue.begin(), lane.queue.end(), Waiting::follows);
    const std::uint32_t number = lane.queue.back().piece;
    lane.queue.pop_back();
    Piece& piece = pieces_[number];
    piece.nic = nic;
    piece.taken_bytes = piece.wire_bytes;
    lane.ahead[nic] += piece.taken_bytes;
    go_under_way(number);
    taken_[port(host, nic)].push_back(number);
    send_ahead(host, nic);
  }
}

// Return the NIC that has the shortest time of bytes ahead for a target, of those that may take
// more and have a path; return the number of NICs if there is none.
std::uint32_t Wires::least_ahead(std::uint32_t host, std::uint32_t target, const Lane& lane) {
  std::uint32_t best = nics_;
  Time least = 0;
  for (std::uint32_t place = 0; place < nics_; ++place) {
    const std::uint32_t nic = by_rate_[port(host, place)];
    if (lane.ahead[nic] >= fabric_.hosts[host].ahead_bytes) continue;
    if (faults_ != nullptr && state(Path{host, target, nic}).down) continue;
    const Time time = transmission(lane.ahead[nic], rates_bps_[port(host, nic)]);
    if (best != nics_ && time >= least) continue;
    best = nic;
    least = time;
  }
  return best;
}

// Make a NIC send the next piece that it took ahead; a piece whose path has gone down since is in
// the queue again, as another piece.
void Wires::send_ahead(std::uint32_t host, std::uint32_t nic) {
  std::deque<std::uint32_t>& taken = taken_[port(host, nic)];
  while (idle_[port(host, nic)] && !taken.empty()) {
    const std::uint32_t number = taken.front();
    taken.pop_front();
    const Piece piece = pieces_[number];
    if (!piece.lost) {
      idle_[port(host, nic)] = 0;
      transmit(number);
    } else {
      lanes_[host][piece.target].ahead[nic] -= piece.taken_bytes;
      if (!piece.again) ends_.frame_sent(piece.frame);
    }
    drop(number);
  }
}

// Note a piece whose packets are lost if its path goes down.
void Wires::go_under_way(std::uint32_t number) {
  if (faults_ == nullptr) return;
  const auto [place, added] = under_way_of_.try_emplace(path(pieces_[number]), under_way_.size());
  if (added) under_way_.emplace_back(place->first, std::vector<std::uint32_t>{});
  under_way_[place->second].second.push_back(number);
}

void Wires::transmit(std::uint32_t number) {
  const Piece& piece = pieces_[number];
  const std::uint32_t host = frames[piece.frame].source;
  const std::uint64_t rate_bps = rates_bps_[port(host, piece.nic)];
  const Time cable = fabric_.hosts[host].latency;
  Time& sends_until = sends_until_[port(host, piece.nic)];
  const Time start = std::max(clock_.now(), sends_until);
  sends_until = after(start, transmission(piece.wire_bytes, rate_bps));
  const Time end = ahead(sends_until, host, rate_bps);
  sent_bytes[host] += piece.wire_bytes;
  const Time owed = after(start, transmission(head_bytes(piece), rate_bps));
  const Time head = after(ahead(owed, host, rate_bps), cable);
  schedule(end, EventKind::kLeft, number);
  schedule(head, EventKind::kAtSwitch, number, after(end, cable));
}

void Wires::left(std::uint32_t number) {
  const Piece piece = pieces_[number];
  const std::uint32_t host = frames[piece.frame].source;
  idle_[port(host, piece.nic)] = 1;
  const bool ahead = fabric_.hosts[host].ahead_bytes != 0;
  if (ahead) lanes_[host][piece.target].ahead[piece.nic] -= piece.taken_bytes;
  if (!piece.again) ends_.frame_sent(piece.frame);
  if (ahead) {
    take_ahead(host, piece.target);
    send_ahead(host, piece.nic);
  } else if (!queues_[host].empty()) {
    start(host);
  }
}

// Apply the effects of the path to packets, then pass the piece to the target's port.
void Wires::at_switch(std::uint32_t number, Time tail) {
  if (faults_ == nullptr) {
    at_port(number, tail);
    return;
  }
  if (pieces_[number].lost) return;
  const Path way = path(pieces_[number]);
  const Lot lot = state(way).plain ? Lot{} : faults_->draw(way, pieces_[number].packets);
  if (lot.lost != 0) {
    lose(number, lot.lost, tail);
    if (pieces_[number].packets == 0) return;
  }
  Piece& piece = pieces_[number];
  Time late = lot.late;
  if (lot.rate_bps != 0) {
    Time& limited_until = limited_until_[way];
    const Time start = std::max(clock_.now(), limited_until);
    limited_until = std::max(after(start, transmission(piece.wire_bytes, lot.rate_bps)), tail);
    late = after(late, limited_until - tail);
  }
  Time& latest = latest_[way];
  latest = std::max(after(clock_.now(), late), latest);
  const Time head = after(latest, lot.overtaken);
  piece.doubled = lot.doubled;
  schedule(head, EventKind::kAtPort, number, after(tail, head - clock_.now()));
}

// Receive a piece at the target's port; some packets of the piece may arrive twice.
void Wires::at_port(std::uint32_t number, Time tail) {
  const Piece& piece = pieces_[number];
  if (piece.lost) return;
  const std::uint32_t target = frames[piece.frame].target;
  const std::uint64_t rate_bps = rates_bps_[port(target, piece.nic)];
  std::uint64_t bytes = piece.wire_bytes;
  if (piece.doubled != 0) bytes += share(piece.wire_bytes, piece.doubled, piece.packets);
  Time& receives_until = receives_until_[port(target, piece.nic)];
  const Time start = std::max(clock_.now(), receives_until);
  // A port that is faster than the sender has gaps, in which other frames are received.
  receives_until = after(start, transmission(bytes, rate_bps));
  // The last bytes, which may wait in the switch for a whole packet, pass after the tail.
  const Time last = after(tail, transmission(head_bytes(piece), rate_bps));
  const Time end =
      std::max({ahead(receives_until, target, rate_bps), tail, ahead(last, target, rate_bps)});
  received_bytes[target] += bytes;
  schedule(after(end, fabric_.hosts[target].latency), EventKind::kArrived, number);
}

void Wires::arrived(std::uint32_t number) {
  const Piece piece = pieces_[number];
  if (piece.lost) return;
  if (faults_ != nullptr) forget_under_way(number);
  Frame& frame = frames[piece.frame];
  frame.packets -= piece.packets;
  if (frame.packets == 0) ends_.frame_arrived(piece.frame);
}

// Take `lost` packets out of a piece; the source sends them again a round trip later.
void Wires::lose(std::uint32_t number, std::uint64_t lost, Time tail) {
  const Path way = path(pieces_[number]);
  const std::uint64_t bytes = share(pieces_[number].wire_bytes, lost, pieces_[number].packets);
  pieces_[number].packets -= lost;
  pieces_[number].wire_bytes -= bytes;
  if (pieces_[number].packets == 0) forget_under_way(number);
  // The time from the switch, at which `tail` is measured, to the target and back to the source.
  const Time to_target = fabric_.hosts[way.target].latency;
  Time trip = after(2 * to_target, fabric_.hosts[way.source].latency);
  trip = after(trip, state(way).delay);
  trip = after(trip, state(Path{way.target, way.source, way.nic}).delay);
  resent_packets += lost;
  schedule(after(tail, trip), EventKind::kQueue,
           piece_of(pieces_[number].frame, lost, bytes, true));
}

void Wires::forget_under_way(std::uint32_t number) {
  std::vector<std::uint32_t>& pieces = under_way_[under_way_of_.at(path(pieces_[number]))].second;
  pieces.erase(std::find(pieces.begin(), pieces.end(), number));
}

// Return the state of a path; ask the owner of the faults only once between two changes.
const PathState& Wires::state(const Path& way) {
  const auto [place, added] = states_.try_emplace(way);
  if (added) place->second = faults_->state(way);
  return place->second;
}

}  // namespace slackline::sim
