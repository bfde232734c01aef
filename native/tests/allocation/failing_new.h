// A lack of memory on demand: the `operator new` of this program fails at a chosen allocation.
#pragma once

#include <cstdint>

namespace slackline::test {

// The threads whose allocations count: those of the engines, and those of the tests while they are
// in a call of an engine. A thread that the test has not marked belongs to an engine.
class Inside {
 public:
  // Mark the calling thread: it is in a call of the engine of this rank.
  explicit Inside(int rank);
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  const int before_;
};

// Mark the calling thread as one of the test, whose allocations do not count.
void mark_as_test();

enum class Lack : std::uint8_t { kOnce, kFromThenOn, kFromThenOnAtRank0 };

// Let allocation number `n`, counted from now and from 0, fail: it alone, or it and all later ones
// (at rank 0: all of the threads in a call of its engine).
void lack_memory(long n, Lack lack);
// Let allocations succeed again. Return how many were counted since lack_memory().
long end_lack();
// Return whether an allocation has failed since lack_memory().
bool lacked_memory();
// Return the number of allocations of the whole program that were not freed.
long live_allocations();

}  // namespace slackline::test
