// The operating system of a simulation: simulated time, threads that take turns, and descriptors of
// simulated sockets. The system calls of the engine lead here (system_calls.cc).
//
// A simulated process has several fibers as its threads. Time passes only between them, and a
// little with each system call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "draw.h"
#include "fiber.h"

namespace slackline::simulation {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMicrosecond = 1'000;
constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1'000'000'000;

// Thrown in the threads of a process that is killed. It is no std::exception, so that the engine
// takes it for none of its own errors.
struct Killed {};

// One direction of a connection, with the bytes that are on their way or wait to be read.
struct Direction {
  struct Piece {
    std::vector<std::byte> bytes;
    std::size_t read = 0;
    std::int64_t arrival_ns;
  };
  struct Unconfirmed {
    std::uint64_t up_to;  // bytes sent so far
    std::int64_t at_ns;
  };
  std::deque<Piece> pieces;
  std::size_t bytes = 0;  // of all pieces, unread
  std::size_t room = 256u << 10;
  std::int64_t free_ns = 0;  // when the line has sent all before
  std::int64_t latest_ns = 0;
  std::int64_t stalled_until_ns = 0;
  std::int64_t delay_ns = 20 * kMicrosecond;
  double bytes_per_ns = 1;
  std::int64_t end_ns = kNever;  // when the end of the stream arrives
  std::uint64_t sent = 0, confirmed = 0;
  std::deque<Unconfirmed> unconfirmed;
  std::int64_t last_confirmed_ns = 0;

  void put(std::span<const std::byte> data, std::int64_t now_ns);
  // Send a packet; it arrives `late_ns` later than a stream's bytes would.
  void put_packet(std::vector<std::byte> packet, std::int64_t now_ns, std::int64_t late_ns);
  // Let nothing arrive before this time.
  void stall(std::int64_t until_ns);
  void confirm(std::int64_t now_ns);
  std::size_t arrived(std::int64_t now_ns) const;
  // Return when at least `least` bytes, or the end, have arrived; kNever if not enough were sent.
  std::int64_t readable_ns(std::size_t least) const;
};

// The way of datagrams in one direction, where they may be lost, doubled, late and damaged.
struct Weather {
  int loss = 0;  // percent, as are the others
  int doubled = 0;
  int damaged = 0;
  std::int64_t jitter_ns = 0;
};

// A connection of two processes, as a stream or, with `datagrams`, for packets. Direction `i` leads
// to end `i`. The pieces of a direction are its packets then, in the order of their arrival.
struct Connection {
  bool datagrams = false;
  Direction to[2];
  Weather weather[2];
  bool open[2] = {true, true};
  int error = 0;                     // for both ends, once the connection was reset
  bool refuses[2] = {false, false};  // to send in this direction
  int process[2] = {-1, -1};
  bool refused[2] = {false, false};  // an end whose packet has found nobody learns it once

  // End the connection by an error. What has arrived can still be read; the rest is lost.
  void reset(std::int64_t now_ns);
};

struct Watch {
  std::uint32_t events;
  std::uint64_t data;
};

struct File {
  enum class Kind : std::uint8_t { kStream, kEvent, kPoll };
  Kind kind;
  int process;
  std::shared_ptr<Connection> connection;  // kStream
  int end = 0;                             // kStream: this file's end of the connection
  std::size_t least = 1;                   // kStream: SO_RCVLOWAT
  std::shared_ptr<std::uint64_t> count;    // kEvent: shared by its duplicates
  std::map<int, Watch> watched;            // kPoll
};

struct Process {
  bool alive = true;
  std::int64_t stopped_until_ns = 0;
  std::int64_t stood_ns = 0;  // how long it stood still in all
  std::int64_t clock_offset_ns = 0;
  int threads = 0;
};

// How the system treats calls, drawn anew for each schedule.
struct Manners {
  bool short_reads = false;
  bool short_writes = false;
  int refusals = 0;       // in percent of the calls: EAGAIN, EINTR and ENOBUFS without a reason
  bool lazy = false;      // threads begin to run late
  bool preempts = false;  // threads pause in calls of the system that do not wait
};

// The lines between processes, as they are without a fault.
struct Line {
  double bytes_per_ns = 1;
  std::int64_t delay_ns = 20 * kMicrosecond;
  std::size_t room = 256u << 10;  // of a socket's buffers
};

class As;

class System {
 public:
  static constexpr int kFirstDescriptor = 1 << 20;

  System(std::uint64_t seed, const Manners& manners, const Line& line, int processes);
  ~System();
  System(const System&) = delete;
  System& operator=(const System&) = delete;

  static System* current();

  std::int64_t now_ns() const { return now_ns_; }
  // Return the time on the clock of the process that runs at this moment.
  std::int64_t clock_ns() const;
  void pass(std::int64_t ns) { now_ns_ += ns; }

  // --- threads ---
  // Start a thread of a process.
  void start(int process, std::function<void()> body, bool background = false);
  // Run all threads until none is left, or with `all` false none but those in the background.
  // Return false if nothing could ever go on, or if the time `until_ns` came first.
  bool run(std::int64_t until_ns, bool all);
  // Pause the calling thread until `ready_ns()`, asked again after each change, is not later than
  // now, and at most until `until_ns`. Return whether it was ready.
  bool wait(const std::function<std::int64_t()>& ready_ns, std::int64_t until_ns);
  void sleep(std::int64_t ns);
  void notify(const void* condition, bool all);
  bool wait_for_notice(const void* condition, std::int64_t until_ns);
  // Let other threads run for a moment, as a scheduler that preempts the calling thread does.
  void preempt(int chance);
  // Let others run until the owner of the mutex has unlocked it.
  void wait_for_mutex(const void* mutex);
  // Call `action` at this time, outside of every process.
  void at(std::int64_t time_ns, std::function<void()> action);
  int process() const { return process_; }
  Process& process(int number) { return processes_[static_cast<std::size_t>(number)]; }
  void kill(int process);
  // End all processes and their threads. Return whether all threads have ended.
  bool end();
  void stop(int process, std::int64_t until_ns);
  // Return a description of the threads that still wait, for the message of a hang.
  std::string waiting() const;
  // The most switches of threads in a schedule. More of them mean that time hardly passes.
  static constexpr std::uint64_t kMostSwitches = 5'000'000;

  // --- descriptors ---
  std::pair<int, int> connect(int a, int b, bool datagrams = false);
  int duplicate(int fd, int process);
  int add(File file);
  File* file(int fd);
  void close(int fd);
  void shut_down(int fd, bool writing_only);
  std::size_t open_files(int process) const;
  std::int64_t ready_ns(const File& file, std::uint32_t events) const;
  std::uint32_t ready_events(const File& file, std::uint32_t events) const;

  Draw& noise() { return noise_; }
  const Manners& manners() const { return manners_; }
  std::uint64_t switches() const { return switches_; }

 private:
  friend class As;
  struct Thread {
    int process;
    bool background;
    std::unique_ptr<Fiber> fiber;
    std::function<std::int64_t()> ready_ns;  // null: ready now
    std::int64_t until_ns = 0;
    std::int64_t not_before_ns = 0;
    const void* condition = nullptr;
    bool noticed = false;
  };

  std::int64_t next_ns(const Thread& thread) const;
  void pause();
  void let_others_run();

  std::int64_t now_ns_ = kSecond;
  std::int64_t resumed_ns_ = 0;  // when the running thread went on
  Draw noise_;
  const Manners manners_;
  const Line line_;
  std::vector<Process> processes_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::multimap<std::int64_t, std::function<void()>> actions_;
  Thread* running_ = nullptr;
  int process_ = -1;
  std::vector<std::unique_ptr<File>> files_;
  std::uint64_t switches_ = 0;
  std::uint64_t most_switches_ = kMostSwitches;
};

// Within the object's life the calling code runs as this process, outside of its threads.
class As {
 public:
  As(System& system, int process);
  ~As();
  As(const As&) = delete;
  As& operator=(const As&) = delete;

 private:
  int before_;
};

}  // namespace slackline::simulation
