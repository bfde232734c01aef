#include "system.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace slackline::simulation {
namespace {

System* present = nullptr;

// The most time by which a thread begins to run late.
constexpr std::int64_t kMostLate = 200 * kMicrosecond;
// The time for which a thread may run without a pause.
constexpr std::int64_t kMostAtOnce = 10 * kMillisecond;
// The bytes of a stream that arrive together.
constexpr std::size_t kPieceBytes = 16u << 10;
// The switches in which the threads of killed processes end.
constexpr std::uint64_t kSwitchesToEnd = 100'000;

}  // namespace

void Direction::put(std::span<const std::byte> data, std::int64_t now_ns) {
  free_ns = std::max(free_ns, now_ns);
  while (!data.empty()) {
    const auto piece = data.first(std::min(data.size(), kPieceBytes));
    data = data.subspan(piece.size());
    free_ns += static_cast<std::int64_t>(static_cast<double>(piece.size()) / bytes_per_ns);
    latest_ns = std::max({latest_ns, free_ns + delay_ns, stalled_until_ns});
    sent += piece.size();
    bytes += piece.size();
    if (latest_ns < kNever) unconfirmed.push_back({sent, latest_ns + delay_ns});
    pieces.push_back({{piece.begin(), piece.end()}, 0, latest_ns});
  }
}

void Direction::put_packet(std::vector<std::byte> packet, std::int64_t now_ns,
                           std::int64_t late_ns) {
  if (bytes + packet.size() > room) return;  // the receiver's buffer is full
  const auto transmission =
      static_cast<std::int64_t>(static_cast<double>(packet.size()) / bytes_per_ns);
  free_ns = std::max(free_ns, now_ns) + transmission;
  if (stalled_until_ns > now_ns) return;
  const std::int64_t arrival = free_ns + delay_ns + late_ns;
  bytes += packet.size();
  const auto place = std::ranges::upper_bound(pieces, arrival, {}, &Piece::arrival_ns);
  pieces.insert(place, {std::move(packet), 0, arrival});
}

void Direction::stall(std::int64_t until_ns) {
  const std::int64_t before = std::exchange(stalled_until_ns, std::max(stalled_until_ns, until_ns));
  if (stalled_until_ns == before) return;
  const std::int64_t now_ns = System::current()->now_ns();
  for (Piece& piece : pieces) {
    if (piece.arrival_ns > now_ns) piece.arrival_ns = std::max(piece.arrival_ns, until_ns);
  }
  for (Unconfirmed& each : unconfirmed) {
    if (each.at_ns > now_ns) each.at_ns = std::max(each.at_ns, until_ns + delay_ns);
  }
  if (end_ns != kNever && end_ns > now_ns) end_ns = std::max(end_ns, until_ns);
  latest_ns = std::max(latest_ns, until_ns);
}

void Direction::confirm(std::int64_t now_ns) {
  while (!unconfirmed.empty() && unconfirmed.front().at_ns <= now_ns) {
    confirmed = unconfirmed.front().up_to;
    last_confirmed_ns = unconfirmed.front().at_ns;
    unconfirmed.pop_front();
  }
}

std::size_t Direction::arrived(std::int64_t now_ns) const {
  std::size_t sum = 0;
  for (const Piece& piece : pieces) {
    if (piece.arrival_ns > now_ns) break;
    sum += piece.bytes.size() - piece.read;
  }
  return sum;
}

std::int64_t Direction::readable_ns(std::size_t least) const {
  std::size_t sum = 0;
  for (const Piece& piece : pieces) {
    sum += piece.bytes.size() - piece.read;
    if (sum >= least) return std::min(piece.arrival_ns, end_ns);
  }
  return end_ns;
}

void Connection::reset(std::int64_t now_ns) {
  error = ECONNRESET;
  for (Direction& direction : to) {
    while (!direction.pieces.empty() && direction.pieces.back().arrival_ns > now_ns) {
      direction.bytes -= direction.pieces.back().bytes.size() - direction.pieces.back().read;
      direction.pieces.pop_back();
    }
  }
}

System::System(std::uint64_t seed, const Manners& manners, const Line& line, int processes)
    : noise_(seed),
      manners_(manners),
      line_(line),
      processes_(static_cast<std::size_t>(processes)) {
  present = this;
}

System::~System() { present = nullptr; }

System* System::current() { return present; }

std::int64_t System::clock_ns() const {
  const std::int64_t offset =
      process_ < 0 ? 0 : processes_[static_cast<std::size_t>(process_)].clock_offset_ns;
  return now_ns_ + offset;
}

void System::start(int process, std::function<void()> body, bool background) {
  auto thread = std::make_unique<Thread>();
  thread->process = process;
  thread->background = background;
  thread->fiber = std::make_unique<Fiber>([body = std::move(body)] {
    try {
      body();
    } catch (const Killed&) {
      // the process has ended
    }
  });
  ++this->process(process).threads;
  threads_.push_back(std::move(thread));
}

std::int64_t System::next_ns(const Thread& thread) const {
  const Process& process = processes_[static_cast<std::size_t>(thread.process)];
  std::int64_t next = now_ns_;
  if (process.alive && thread.ready_ns != nullptr)
    next = std::max(now_ns_, std::min(thread.ready_ns(), thread.until_ns));
  return process.alive ? std::max({next, thread.not_before_ns, process.stopped_until_ns}) : next;
}

bool System::run(std::int64_t until_ns, bool all) {
  while (true) {
    std::erase_if(threads_, [&](const auto& thread) {
      if (!thread->fiber->ended()) return false;
      --process(thread->process).threads;
      return true;
    });
    if (std::ranges::all_of(threads_, [&](const auto& each) { return !all && each->background; }))
      return true;
    std::int64_t soonest = actions_.empty() ? kNever : actions_.begin()->first;
    std::vector<Thread*> first;
    for (const auto& thread : threads_) {
      const std::int64_t next = next_ns(*thread);
      if (next > soonest || next == kNever) continue;
      if (next < soonest) first.clear();
      soonest = next;
      first.push_back(thread.get());
    }
    if (soonest == kNever || soonest > until_ns || switches_ > most_switches_) return false;
    now_ns_ = std::max(now_ns_, soonest);
    if (!actions_.empty() && actions_.begin()->first <= now_ns_) {
      const auto action = std::move(actions_.begin()->second);
      actions_.erase(actions_.begin());
      action();
      continue;
    }
    Thread& chosen = *noise_.one_of(first);
    ++switches_;
    running_ = &chosen;
    resumed_ns_ = now_ns_;
    process_ = chosen.process;
    chosen.fiber->resume();
    running_ = nullptr;
    process_ = -1;
  }
}

void System::pause() {
  Thread& self = *running_;
  self.not_before_ns = 0;
  if (manners_.lazy && noise_.percent(10))
    self.not_before_ns = now_ns_ + noise_.between(0, kMostLate);
  let_others_run();
  if (!process(self.process).alive) throw Killed{};
}

void System::let_others_run() {
  Thread& self = *running_;
  Fiber::pause();
  self.ready_ns = nullptr;
  self.not_before_ns = 0;
}

// A thread of a process that is killed goes on until it waits: it may be within code that lets no
// exception pass.
void System::preempt(int chance) {
  if (running_ == nullptr) return;
  // A thread that never waits must not keep the others from running.
  const bool long_enough = now_ns_ - resumed_ns_ > kMostAtOnce;
  if (!long_enough && (!manners_.preempts || !noise_.percent(chance))) return;
  running_->ready_ns = nullptr;
  running_->not_before_ns = now_ns_ + noise_.spread(100, 100 * kMicrosecond);
  let_others_run();
}

void System::wait_for_mutex(const void* mutex) {
  Thread& self = *running_;
  self.condition = mutex;
  self.noticed = false;
  self.ready_ns = [&self, this] { return self.noticed ? now_ns_ : kNever; };
  self.until_ns = kNever;
  let_others_run();
  self.condition = nullptr;
}

bool System::wait(const std::function<std::int64_t()>& ready_ns, std::int64_t until_ns) {
  Thread& self = *running_;
  self.ready_ns = ready_ns;
  self.until_ns = until_ns;
  pause();
  return ready_ns() <= now_ns_;
}

void System::sleep(std::int64_t ns) {
  const std::int64_t until = now_ns_ + ns;
  wait([] { return kNever; }, until);
}

bool System::wait_for_notice(const void* condition, std::int64_t until_ns) {
  Thread& self = *running_;
  self.condition = condition;
  self.noticed = false;
  const bool noticed = wait([&self, this] { return self.noticed ? now_ns_ : kNever; }, until_ns);
  self.condition = nullptr;
  return noticed;
}

void System::notify(const void* condition, bool all) {
  for (const auto& thread : threads_) {
    if (thread->condition != condition || thread->noticed) continue;
    thread->noticed = true;
    if (!all) return;
  }
}

void System::at(std::int64_t time_ns, std::function<void()> action) {
  actions_.emplace(time_ns, std::move(action));
}

void System::kill(int number) {
  Process& process = this->process(number);
  if (!process.alive) return;
  process.alive = false;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    // Peers notice the end of a connection only; the object of the engine closes its other
    // descriptors.
    if (files_[i] != nullptr && files_[i]->process == number &&
        files_[i]->kind == File::Kind::kStream)
      close(kFirstDescriptor + static_cast<int>(i));
  }
}

void System::stop(int number, std::int64_t until_ns) {
  Process& process = this->process(number);
  const std::int64_t since_ns = std::max(now_ns_, process.stopped_until_ns);
  process.stood_ns += std::max<std::int64_t>(0, until_ns - since_ns);
  process.stopped_until_ns = std::max(process.stopped_until_ns, until_ns);
}

bool System::end() {
  if (threads_.empty()) return true;
  for (std::size_t i = 0; i < processes_.size(); ++i) kill(static_cast<int>(i));
  actions_.clear();
  most_switches_ = switches_ + kSwitchesToEnd;
  return run(kNever - 1, true);
}

std::string System::waiting() const {
  std::string text;
  for (const auto& thread : threads_) {
    if (thread->background) continue;
    text += (text.empty() ? "" : ", ") + std::string("process ") + std::to_string(thread->process);
    if (thread->condition != nullptr) text += " (on a condition)";
  }
  return text;
}

// --- descriptors ---

int System::add(File file) {
  const auto free = std::ranges::find_if(files_, [](const auto& file) { return file == nullptr; });
  const auto index = free - files_.begin();
  if (free == files_.end()) files_.emplace_back();
  files_[static_cast<std::size_t>(index)] = std::make_unique<File>(std::move(file));
  return kFirstDescriptor + static_cast<int>(index);
}

File* System::file(int fd) {
  const int index = fd - kFirstDescriptor;
  if (index < 0 || index >= static_cast<int>(files_.size())) return nullptr;
  return files_[static_cast<std::size_t>(index)].get();
}

std::pair<int, int> System::connect(int a, int b, bool datagrams) {
  auto connection = std::make_shared<Connection>();
  connection->datagrams = datagrams;
  connection->process[0] = a;
  connection->process[1] = b;
  for (Direction& direction : connection->to) {
    direction.last_confirmed_ns = now_ns_;
    direction.bytes_per_ns = line_.bytes_per_ns;
    direction.delay_ns = line_.delay_ns;
    direction.room = line_.room;
  }
  File first{File::Kind::kStream, a, connection, 0, 1, nullptr, {}};
  File second{File::Kind::kStream, b, connection, 1, 1, nullptr, {}};
  const int one = add(std::move(first));
  return {one, add(std::move(second))};
}

int System::duplicate(int fd, int process) {
  File copy = *file(fd);
  copy.process = process;
  return add(std::move(copy));
}

void System::shut_down(int fd, bool writing_only) {
  const File& here = *file(fd);
  Connection& connection = *here.connection;
  Direction& out = connection.to[1 - here.end];
  if (out.end_ns == kNever)
    out.end_ns = std::max({now_ns_ + out.delay_ns, out.latest_ns, out.stalled_until_ns});
  if (!writing_only) connection.to[here.end].end_ns = now_ns_;
}

void System::close(int fd) {
  const std::unique_ptr<File> file =
      std::move(files_[static_cast<std::size_t>(fd - kFirstDescriptor)]);
  if (file == nullptr) return;
  for (const auto& other : files_) {
    if (other != nullptr && other->kind == File::Kind::kPoll) other->watched.erase(fd);
  }
  if (file->kind != File::Kind::kStream) return;
  Connection& connection = *file->connection;
  connection.open[file->end] = false;
  if (connection.datagrams) return;
  // Data that nobody will read make the peer's next use of the connection fail.
  Direction& in = connection.to[file->end];
  if (in.bytes > 0) connection.reset(now_ns_);
  Direction& out = connection.to[1 - file->end];
  if (out.end_ns == kNever)
    out.end_ns = std::max({now_ns_ + out.delay_ns, out.latest_ns, out.stalled_until_ns});
}

std::size_t System::open_files(int process) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      files_, [&](const auto& file) { return file != nullptr && file->process == process; }));
}

std::int64_t System::ready_ns(const File& file, std::uint32_t events) const {
  if (file.kind == File::Kind::kEvent)
    return (events & EPOLLIN) != 0 && *file.count > 0 ? now_ns_ : kNever;
  if (file.kind == File::Kind::kPoll) return kNever;
  const Connection& connection = *file.connection;
  if (connection.error != 0) return now_ns_;
  if (connection.datagrams) {
    if ((events & EPOLLOUT) != 0 || connection.refused[file.end]) return now_ns_;
    const auto& packets = connection.to[file.end].pieces;
    return packets.empty() ? kNever : std::max(now_ns_, packets.front().arrival_ns);
  }
  const Direction& in = connection.to[file.end];
  const Direction& out = connection.to[1 - file.end];
  std::int64_t ready = kNever;
  if ((events & EPOLLIN) != 0)
    ready = std::max(now_ns_, in.readable_ns(std::min(file.least, in.room / 2)));
  if ((events & EPOLLOUT) != 0 && out.bytes < out.room) ready = now_ns_;
  return ready;
}

std::uint32_t System::ready_events(const File& file, std::uint32_t events) const {
  std::uint32_t found = 0;
  for (const std::uint32_t one : {EPOLLIN, EPOLLOUT}) {
    if ((events & one) != 0 && ready_ns(file, one) <= now_ns_) found |= one;
  }
  if (file.kind == File::Kind::kStream && file.connection->error != 0) found |= EPOLLERR;
  return found;
}

As::As(System& system, int process) : before_(std::exchange(system.process_, process)) {}
As::~As() { System::current()->process_ = before_; }

}  // namespace slackline::simulation
