#include "fields.h"

#include <concepts>
#include <iomanip>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace slackline::simulation {
namespace {

constexpr std::size_t kMostEntries = 10'000;

class Writer {
 public:
  template <class T>
  void operator()(const T& value) {
    if constexpr (std::is_enum_v<T>)
      text_ << static_cast<std::int64_t>(value) << ' ';
    else
      text_ << std::setprecision(std::numeric_limits<double>::max_digits10) << value << ' ';
  }
  std::size_t length(std::size_t present) {
    (*this)(present);
    return present;
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

class Reader {
 public:
  explicit Reader(const std::string& line) : text_(line) {}
  template <class T>
  void operator()(T& value) {
    if constexpr (std::is_enum_v<T>)
      value = static_cast<T>(take<std::int64_t>());
    else
      value = take<T>();
  }
  std::size_t length(std::size_t) {
    const auto found = take<std::size_t>();
    if (found > kMostEntries) throw std::invalid_argument("a schedule has too many entries");
    return found;
  }

 private:
  template <class T>
  T take() {
    T value{};
    if (!(text_ >> value)) throw std::invalid_argument("a schedule ends in its middle");
    return value;
  }
  std::istringstream text_;
};

// Pass each field to a reader or a writer, in a fixed order.
template <class Archive, class Vector, class Each>
void list(Archive& archive, Vector& vector, const Each& each) {
  const std::size_t length = archive.length(vector.size());
  if constexpr (!std::is_const_v<Vector>) vector.resize(length);
  for (std::size_t i = 0; i < length; ++i) each(vector[i]);
}

template <class Archive, class P>
void pass_part(Archive& archive, P& part) {
  archive(part.pause_ns);
  archive(part.blocking);
  archive(part.waits_for_all);
  archive(part.registered);
  archive(part.shares_ns);
  archive(part.cancel_ns);
  archive(part.exit);
}

template <class Archive, class W>
void pass_work(Archive& archive, W& work) {
  archive(work.verb);
  archive(work.group);
  archive(work.plan);
  archive(work.from);
  archive(work.to);
  archive(work.tag);
  archive(work.dtype);
  archive(work.priority);
  archive(work.count);
  archive(work.in_place);
  archive(work.seed);
  list(archive, work.weights, [&](auto& each) { archive(each); });
  archive(work.timeout_ns);
  list(archive, work.parts, [&](auto& part) { pass_part(archive, part); });
}

template <class Archive, class F>
void pass_fault(Archive& archive, F& fault) {
  archive(fault.trouble);
  archive(fault.work);
  archive(fault.at_ns);
  archive(fault.for_ns);
  archive(fault.a);
  archive(fault.b);
  archive(fault.rail);
  archive(fault.factor);
}

template <class Archive, class S>
void pass(Archive& archive, S& s) {
  archive(s.seed);
  archive(s.ranks);
  archive(s.aggregator);
  archive(s.onset);
  archive(s.device_sets);
  list(archive, s.rails, [&](auto& each) { archive(each); });
  list(archive, s.datagrams, [&](auto& each) { archive(each); });
  list(archive, s.groups,
       [&](auto& group) { list(archive, group, [&](auto& rank) { archive(rank); }); });
  archive(s.manners.short_reads);
  archive(s.manners.short_writes);
  archive(s.manners.refusals);
  archive(s.manners.lazy);
  archive(s.manners.preempts);
  archive(s.line.bytes_per_ns);
  archive(s.line.delay_ns);
  archive(s.line.room);
  archive(s.progress_thread);
  archive(s.spin_us);
  archive(s.rank_order);
  archive(s.eager_bytes);
  archive(s.wire_segment_bytes);
  archive(s.memory_segment_bytes);
  archive(s.arena_bytes);
  archive(s.first_sequence);
  archive(s.troubles);
  list(archive, s.work, [&](auto& work) { pass_work(archive, work); });
  list(archive, s.faults, [&](auto& fault) { pass_fault(archive, fault); });
}

}  // namespace

std::string line_of(const Schedule& schedule) {
  Writer writer;
  pass(writer, schedule);
  return writer.text();
}

Schedule schedule_of(const std::string& line) {
  Reader reader(line);
  Schedule schedule;
  pass(reader, schedule);
  return schedule;
}

}  // namespace slackline::simulation
