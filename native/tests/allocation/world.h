// Engines of several ranks in one process that work while memory is short. All memory of the test
// itself is taken before the shortage begins.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "../frames.h"
#include "../ranks.h"
#include "failing_new.h"

namespace slackline::test {

struct Scene {
  const char* name;
  int ranks;
  Kind kind;
  int rails = 1;
  bool loses_rail = false;  // the first rail is cut while operations are open
  // The progress thread does the work, and the test waits in next_completion().
  bool progress_thread = false;
  bool links_only = false;  // the links are made and closed, without an operation
};

// A rank of the scene, with its engine, its operations and their results.
class Member {
 public:
  Member(const Scene& scene, int rank);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  // Make a call of the engine. Return false if it ended by an error; the rank then leaves.
  template <class Call>
  bool call(Call&& body) {
    const Inside inside(rank_);
    try {
      body();
      return true;
    } catch (const std::bad_alloc&) {
      // the caller's error
    } catch (const std::runtime_error&) {
      // the group or the engine is closed
    } catch (...) {
      untyped_ = true;
    }
    thrown_ = true;
    return false;
  }
  Engine& engine() { return *engine_; }
  // Open the group over the links, if each of them could be made.
  void open();
  // Carry out this rank's operations. `lose_rail` is called while they are open.
  void work(const std::function<void()>& lose_rail);
  void close();
  // Check that every operation has ended, with the right result or with a typed error. Return
  // whether all have succeeded.
  bool all_succeeded() const;

  std::vector<int> links;  // by rank; -1 for a link that could not be made

 private:
  void post(const Operation& operation, bool blocking, const std::vector<float>* sum = nullptr);
  void wait_for_all();

  struct Posted {
    std::shared_ptr<Request> request;
    const std::vector<float>* sum;  // the target of an all_reduce
  };

  const Scene& scene_;
  const int rank_;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<Group> group_;
  std::vector<float> segments_, eager_, brief_;
  std::vector<std::byte> short_message_, long_message_;
  std::vector<Operation> operations_;
  std::vector<Posted> posted_;
  std::size_t watched_ = 0;
  bool thrown_ = false;
  bool untyped_ = false;
};

// Play a scene in which allocation number `n` fails. Return whether there was one. Throws if
// something went wrong, and ends the process if a rank hangs.
bool play(const Scene& scene, long n, Lack lack);

// Return the number of allocations that may fail in a scene.
long allocations_of(const Scene& scene);

}  // namespace slackline::test
