// A program that measures the throughput of a UDP rail (a path to a peer) over the loopback
// interface: two processes, one direction, frames of 128 KiB.
//   bench_udp_rail [packet bytes [seconds]]
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "udp_sockets.h"

namespace slackline::test {
namespace {

constexpr std::uint32_t kFrame = 128u << 10;

// A sink that neither verifies nor keeps frames, so that only the rail is measured.
struct Sink final : FrameSink {
  std::byte* direct_placement(Link&, const wire::Header&, Request**) override {
    return place.data();
  }
  void arrive(Link&, const wire::Header&, const Payload& payload) override {
    bytes += payload.length;
    if (payload.owned != nullptr) give_buffer(payload.owned);
  }
  bool lock_wanted() const override { return false; }
  std::byte* take_buffer(std::size_t length) override { return new std::byte[length]; }
  void give_buffer(std::byte* buffer) override { delete[] buffer; }
  Bytes place = Bytes(kFrame);
  std::uint64_t bytes = 0;
};

double cpu_seconds() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

void report(const char* who, UdpRail& rail, std::uint64_t bytes, double seconds, double cpu) {
  const RailCounters& c = rail.counters();
  const UdpSender& s = rail.protocol().sender();
  std::printf(
      "%-8s %6.2f Gbit/s  %5.2f s CPU per GB  %5.1f packets of ours a system call  sent %llu "
      "resent "
      "%llu spurious %llu refused %llu timeouts %llu  srtt %lld us base %lld us window %llu KiB\n",
      who, static_cast<double>(bytes) * 8 / seconds / 1e9, cpu / (static_cast<double>(bytes) / 1e9),
      static_cast<double>(c.packets_sent) / static_cast<double>(c.system_calls),
      static_cast<unsigned long long>(c.packets_sent),
      static_cast<unsigned long long>(c.packets_resent),
      static_cast<unsigned long long>(s.counters().spurious),
      static_cast<unsigned long long>(c.packets_refused),
      static_cast<unsigned long long>(s.counters().timeouts),
      static_cast<long long>(s.congestion().smoothed_ns() / 1000),
      static_cast<long long>(s.congestion().shortest_ns() / 1000),
      static_cast<unsigned long long>(s.congestion().window() >> 10));
  std::fflush(stdout);
}

void sleep_for(UdpRail& rail) {
  const std::int64_t due = rail.due_ns();
  const std::int64_t wait =
      due == WireRail::kNever ? 100'000'000 : std::max<std::int64_t>(due - now_ns(), 0);
  pollfd watch{rail.fd(), static_cast<short>(POLLIN | (rail.blocked() ? POLLOUT : 0)), 0};
  const timespec time{wait / 1'000'000'000, wait % 1'000'000'000};
  ::ppoll(&watch, 1, &time, nullptr);
}

void send(int fd, std::size_t packet_bytes, double seconds) {
  UdpEnd end(fd, packet_bytes);
  UdpRail& rail = *end.rail;
  const Bytes payload = pattern(kFrame, 1);
  const std::int64_t began = now_ns();
  const auto duration = static_cast<std::int64_t>(seconds * 1e9);
  std::uint32_t sequence = 0;
  while (now_ns() - began < duration && !rail.failure()) {
    bool any = rail.poll(end.link, end.sink, now_ns());
    if (rail.due_ns() <= now_ns()) rail.tick(now_ns());
    while (rail.room()) {
      rail.enqueue(data_header(++sequence, kFrame), payload.data(), kFrame);
      any = true;
    }
    rail.writable();
    rail.flush(now_ns());
    if (!any) sleep_for(rail);
  }
  const double took = static_cast<double>(now_ns() - began) / 1e9;
  report("sender", rail, std::uint64_t{rail.counters().frames_sent} * kFrame, took, cpu_seconds());
}

void receive(int fd, std::size_t packet_bytes) {
  UdpEnd end(fd, packet_bytes);
  UdpRail& rail = *end.rail;
  Sink sink;
  const std::int64_t began = now_ns();
  while (!rail.failure()) {
    const bool any = rail.poll(end.link, sink, now_ns());
    if (rail.due_ns() <= now_ns()) rail.tick(now_ns());
    rail.flush(now_ns());
    if (!any) sleep_for(rail);
  }
  report("receiver", rail, sink.bytes, static_cast<double>(now_ns() - began) / 1e9, cpu_seconds());
  rail.abandon(sink);
}

}  // namespace
}  // namespace slackline::test

int main(int argc, char** argv) {
  using namespace slackline::test;
  const std::size_t packet_bytes =
      argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : slackline::kUdpMaxPacket;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 3;
  const auto [x, y] = udp_pair();
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(x);
    receive(y, packet_bytes);
    std::_Exit(0);
  }
  ::close(y);
  send(x, packet_bytes, seconds);
  ::waitpid(child, nullptr, 0);
}
