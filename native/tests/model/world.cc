#include "world.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "../../src/engine/wire_port.h"
#include "../frames.h"

namespace slackline::model {
namespace {

constexpr std::size_t kBorrowed = (64u << 10) + 64;  // longer than a link copies
constexpr int kIdleTag = 4000;

const char* name_of(What what) {
  constexpr std::array<const char*, 9> kNames = {"deliver", "begin",  "fail",   "notice", "suspect",
                                                 "dial",    "answer", "settle", "prefer"};
  return kNames[static_cast<std::size_t>(what)];
}

}  // namespace

namespace {

// Return data for an operation. The data is cached because every replay needs it again.
const std::vector<std::byte>& words(std::size_t bytes, unsigned seed) {
  static std::map<std::pair<std::size_t, unsigned>, std::vector<std::byte>> made;
  std::vector<std::byte>& found = made[{bytes, seed}];
  if (found.empty()) found = test::pattern(bytes, seed);
  return found;
}

constexpr std::size_t kSummed = kBorrowed / sizeof(float);
// The larger share has a payload that is borrowed, and the smaller one has a payload that is
// copied.
constexpr std::size_t kDivided = 2 * kSummed;
constexpr std::array<std::uint32_t, 2> kWeights = {3, 1};

std::vector<std::byte> values(const std::vector<int>& ranks, std::size_t count) {
  std::vector<float> sum(count);
  for (const int rank : ranks) {
    for (std::size_t i = 0; i < count; ++i) sum[i] += test::contribution(rank, i);
  }
  std::vector<std::byte> bytes(count * sizeof(float));
  std::memcpy(bytes.data(), sum.data(), bytes.size());
  return bytes;
}

// Return whether every frame that the peer has not acknowledged is on a rail that is up, or no rail
// is up. A link keeps this invariant after every event.
bool every_frame_has_rail(const Link& link) {
  const Channel& channel = wires_of(link)->channel();
  const auto is_up = [](const auto& rail) { return rail->up(); };
  return link.down || std::ranges::none_of(channel.rails().all(), is_up) ||
         std::ranges::all_of(channel.retained(), [](const Channel::Retained& r) {
           return r.rail != nullptr && r.rail->up();
         });
}

}  // namespace

std::string Event::text() const {
  std::string text = name_of(what);
  text += end == 0 ? " A" : " B";
  if (what != What::kPrefer && what != What::kSettle) text += " rail " + std::to_string(rail);
  if (what == What::kDeliver || what == What::kBegin) text += " frame " + std::to_string(frame);
  return text;
}

World::World(const Setting& setting) : setting_(setting) {
  EngineOptions options = test::one_thread(1u << 20);
  options.spin_microseconds = 0;
  if (setting.work == Work::kSegments) options.wire_segment_bytes = 4096;
  for (int e = 0; e < 2; ++e) {
    End& end = ends_[static_cast<std::size_t>(e)];
    end.engine = std::make_unique<Engine>(options);
    const int link = end.engine->connections().add_link("model", true);
    std::vector<int> links(2, -1);
    links[static_cast<std::size_t>(1 - e)] = link;
    end.group = end.engine->open_group(1, e, links, false);
    end.link = end.group->links[static_cast<std::size_t>(1 - e)];
  }
  for (int r = 0; r < (setting.late ? 0 : kRails); ++r) {
    const auto there = std::make_shared<Pipe>();
    const auto back = std::make_shared<Pipe>();
    add_rail(0, r, there, back);
    add_rail(1, r, back, there);
  }
  for (int e = 0; e < 2; ++e) {
    End& end = ends_[static_cast<std::size_t>(e)];
    end.idle = end.engine->post(*end.group, test::receive_from(1 - e, nullptr, 0, kIdleTag), false);
  }
  post_work();
  go_on();
  check();
}

World::~World() {
  for (End& end : ends_) {
    end.engine->close(0);
    end.engine.reset();
  }
}

LinkRail* World::known_rail(int end, int index) const {
  return wires_of(*ends_[static_cast<std::size_t>(end)].link)->rail(index);
}

MemoryRail* World::rail(int end, int index) {
  LinkRail* found = known_rail(end, index);
  return found == nullptr ? nullptr : static_cast<MemoryRail*>(found->wire.get());
}

void World::add_rail(int end, int index, std::shared_ptr<Pipe> out, std::shared_ptr<Pipe> in) {
  const bool checksums = setting_.work == Work::kSums;
  auto rail = std::make_unique<MemoryRail>(setting_.kind, checksums, std::move(out), std::move(in));
  End& at = ends_[static_cast<std::size_t>(end)];
  rail->prefer((index == 1) == at.prefers_second);
  at.link->add_rail(index, "rail", std::move(rail));
  known_rail(end, index)->next_probe_ns = WireRail::kNever;  // only suspected rails are probed
}

void World::post(int end, bool receives, std::size_t bytes, int tag, unsigned seed) {
  End& at = ends_[static_cast<std::size_t>(end)];
  auto& list = receives ? at.receives : at.sends;
  list.push_back(std::make_unique<Memory>());
  Memory& memory = *list.back();
  memory.bytes = receives ? std::vector<std::byte>(bytes) : words(bytes, seed);
  if (receives) memory.wanted = &words(bytes, seed);
  memory.request = at.engine->post(
      *at.group, test::message(receives, memory.bytes.data(), bytes, 1 - end, tag), false);
}

// Post an all_reduce in place. End `first` sends its data; the other end adds its own and sends the
// sum back into the same memory.
void World::post_sum(int end, int first) {
  End& at = ends_[static_cast<std::size_t>(end)];
  auto program = std::make_shared<Program>(wire::Collective::kAllReduce, std::uint8_t{4}, 2, end, 1,
                                           true, false, true);
  if (end != first) program->append(Opcode::kAdd, first, 0, true);
  program->append(Opcode::kSend, 1 - end, 0, false);
  if (end == first) program->append(Opcode::kCopy, 1 - end, 0, false);
  static const std::array<std::vector<std::byte>, 2> own = {values({0}, kSummed),
                                                            values({1}, kSummed)};
  static const std::vector<std::byte> sum = values({0, 1}, kSummed);
  at.receives.push_back(std::make_unique<Memory>());
  Memory& memory = *at.receives.back();
  memory.bytes = own[static_cast<std::size_t>(end)];
  memory.wanted = &sum;
  auto* at_values = reinterpret_cast<float*>(memory.bytes.data());
  memory.request = at.engine->post(
      *at.group, test::reduction(program, at_values, at_values, kSummed, first), false);
}

// Post an all_reduce in place, in which each end owns a share that is not known yet.
void World::post_divided(int end) {
  End& at = ends_[static_cast<std::size_t>(end)];
  const int other = 1 - end;
  auto program = std::make_shared<Program>(wire::Collective::kAllReduce, std::uint8_t{4}, 2, end, 2,
                                           true, false, true);
  program->append(Opcode::kAdd, other, end, true);
  program->append(Opcode::kSend, other, end, false);
  program->append(Opcode::kSend, other, other, false);
  program->append(Opcode::kCopy, other, other, false);
  static const std::array<std::vector<std::byte>, 2> own = {values({0}, kDivided),
                                                            values({1}, kDivided)};
  static const std::vector<std::byte> sum = values({0, 1}, kDivided);
  at.receives.push_back(std::make_unique<Memory>());
  Memory& memory = *at.receives.back();
  memory.bytes = own[static_cast<std::size_t>(end)];
  memory.wanted = &sum;
  auto* at_values = reinterpret_cast<float*>(memory.bytes.data());
  Operation operation = test::reduction(program, at_values, at_values, kDivided);
  at.shares = std::make_shared<Shares>();
  at.divided = program;
  operation.shares = at.shares;
  memory.request = at.engine->post(*at.group, operation, false);
}

void World::post_work() {
  switch (setting_.work) {
    case Work::kMessage:
      post(1, true, kBorrowed, 1, 1);
      post(0, false, kBorrowed, 1, 1);
      break;
    case Work::kMessages:  // each way, one message that needs an ACK and one that is copied
      for (int end = 0; end < 2; ++end) {
        for (int tag = 1; tag <= 2; ++tag) {
          const std::size_t bytes = tag == 1 ? kBorrowed : 100;
          post(end, true, bytes, tag, static_cast<unsigned>(2 * (1 - end) + tag));
        }
      }
      for (int end = 0; end < 2; ++end) {
        for (int tag = 1; tag <= 2; ++tag) {
          const std::size_t bytes = tag == 1 ? kBorrowed : 100;
          post(end, false, bytes, tag, static_cast<unsigned>(2 * end + tag));
        }
      }
      break;
    case Work::kSegments:  // several segments of one message with the same destination
      post(1, true, 8192, 1, 1);
      post(0, false, 8192, 1, 1);
      break;
    case Work::kSums:
      for (int end = 0; end < 2; ++end) {
        for (int first = 0; first < 2; ++first) post_sum(end, first);
      }
      break;
    case Work::kShares:
      for (int end = 0; end < 2; ++end) post_divided(end);
  }
}

std::vector<Event> World::events() {
  std::vector<Event> all;
  const auto add = [&](What what, int end, int rail, std::size_t frame = 0) {
    all.push_back(Event{what, static_cast<std::uint8_t>(end), static_cast<std::uint8_t>(rail),
                        static_cast<std::uint8_t>(frame)});
  };
  for (int e = 0; e < 2; ++e) {
    for (int r = 0; r < kRails; ++r) {
      MemoryRail* here = rail(e, r);
      if (here == nullptr) continue;
      const auto& frames = here->in().frames;
      const bool overtaking = setting_.kind == RailKind::kUdp;
      for (std::size_t f = 0;
           f < (overtaking ? frames.size() : std::min<std::size_t>(1, frames.size())); ++f) {
        add(What::kDeliver, e, r, f);
        if (frames[f].header.length > 1000 && !frames[f].begun) add(What::kBegin, e, r, f);
      }
      if (here->in().writer_gone) add(What::kNotice, e, r);
    }
  }
  for (int r = 0; r < kRails; ++r) {
    if (rail(0, r) == nullptr && dialled_[static_cast<std::size_t>(r)] == nullptr)
      add(What::kDial, 0, r);
    if (dialled_[static_cast<std::size_t>(r)] != nullptr) add(What::kAnswer, 1, r);
  }
  for (int e = 0; e < 2; ++e) {
    for (int r = 0; r < kRails; ++r) {
      MemoryRail* here = rail(e, r);
      if (here == nullptr) continue;
      if (failures_ < setting_.failures) add(What::kFail, e, r);
      const LinkRail* other = known_rail(e, 1 - r);
      const bool well = other != nullptr && other->state == RailState::kUp;
      const LinkRail* mine = known_rail(e, r);
      if (suspicions_ < setting_.suspicions && well && mine->state == RailState::kUp &&
          !here->out().frames.empty())
        add(What::kSuspect, e, r);
    }
    const End& end = ends_[static_cast<std::size_t>(e)];
    if (end.shares != nullptr && !end.shares->known) add(What::kSettle, e, 0);
    if (setting_.preferences && changes_of_mind_ == 0) add(What::kPrefer, e, 0);
  }
  return all;
}

void World::happen(const Event& event) {
  End& end = ends_[event.end];
  MemoryRail* here = rail(event.end, event.rail);
  auto& dialled = dialled_[event.rail];
  switch (event.what) {
    case What::kDeliver:
    case What::kBegin:
      here->take_next(event.frame, event.what == What::kDeliver);
      break;
    case What::kFail:
      ++failures_;
      here->end(Fault::kLink);
      break;
    case What::kNotice: {
      // An orderly end is seen only after everything before it has been read.
      const bool orderly = setting_.kind == RailKind::kTcp && here->in().frames.empty();
      here->end(orderly ? Fault::kPeer : Fault::kLink);
      break;
    }
    case What::kSuspect:
      ++suspicions_;
      here->quiet = true;
      end.link->port().watch(false);
      here->quiet = false;
      known_rail(event.end, event.rail)->next_probe_ns = WireRail::kNever;
      CHECK(known_rail(event.end, event.rail)->state == RailState::kSuspect);
      break;
    case What::kDial:
      dialled =
          std::make_unique<Dialled>(Dialled{std::make_shared<Pipe>(), std::make_shared<Pipe>()});
      add_rail(0, event.rail, dialled->out, dialled->in);
      break;
    case What::kAnswer: {
      const std::unique_ptr<Dialled> taken = std::move(dialled);
      add_rail(1, event.rail, taken->in, taken->out);
      break;
    }
    case What::kSettle:
      end.engine->set_shares(*end.group, *end.shares, {kWeights.begin(), kWeights.end()}, 1,
                             end.divided);
      break;
    case What::kPrefer:
      ++changes_of_mind_;
      end.prefers_second = !end.prefers_second;
      for (int r = 0; r < kRails; ++r) {
        if (MemoryRail* each = rail(event.end, r)) each->prefer((r == 1) == end.prefers_second);
      }
  }
  go_on();
  check();
}

// Let both engines do all they can do now, without advancing time.
void World::go_on() {
  for (End& end : ends_) {
    if (end.engine->wait(*end.idle, 0)) test::fail(end.idle->failure.message);
  }
}

void World::check() {
  for (int e = 0; e < 2; ++e) {
    End& end = ends_[static_cast<std::size_t>(e)];
    if (end.link->down) test::fail("the link is down: " + end.link->failure.message);
    if (end.group->broken) test::fail("the group is broken: " + end.group->broken.message);
    if (!every_frame_has_rail(*end.link))
      test::fail("a rail is up, but a frame is on no rail, or on one that is suspect or lost");
    const auto finished = [](Memory& memory) {
      if (!memory.request->finished()) return false;
      if (memory.request->failure)
        test::fail("an operation failed: " + memory.request->failure.message);
      return true;
    };
    const auto within = [](const std::byte* at, const Memory& memory) {
      return at >= memory.bytes.data() && at < memory.bytes.data() + memory.bytes.size();
    };
    const auto no_rail_refers = [&](const Memory& memory) {
      for (int r = 0; r < kRails; ++r) {
        MemoryRail* here = rail(e, r);
        if (here == nullptr) continue;
        for (const Flying& frame : here->out().frames) {
          if (!frame.released && within(frame.payload, memory))
            test::fail("memory of a finished operation is still to be read by a rail");
        }
        for (const Flying& frame : here->in().frames) {
          if (frame.begun && !frame.owned && within(frame.destination, memory))
            test::fail("memory of a finished operation is still being written by a rail");
        }
      }
    };
    for (auto& memory : end.sends) {
      if (finished(*memory)) no_rail_refers(*memory);
    }
    for (auto& memory : end.receives) {
      if (!finished(*memory)) continue;
      no_rail_refers(*memory);
      if (!std::exchange(memory->seen_finished, true))
        CHECK(std::memcmp(memory->bytes.data(), memory->wanted->data(), memory->bytes.size()) == 0);
    }
  }
}

bool World::quiet() {
  for (int e = 0; e < 2; ++e) {
    End& end = ends_[static_cast<std::size_t>(e)];
    for (const auto* list : {&end.sends, &end.receives}) {
      for (const auto& memory : *list) {
        if (!memory->request->finished()) return false;
      }
    }
    for (int r = 0; r < kRails; ++r) {
      if (MemoryRail* here = rail(e, r); here == nullptr || !here->in().frames.empty())
        return false;
      if (known_rail(e, r)->state != RailState::kUp) return false;
    }
  }
  return true;
}

}  // namespace slackline::model
