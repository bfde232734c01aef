// The Python objects for posted operations and for queues of ended operations, and their bindings.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>

#include "../src/engine/engine.h"

namespace slackline {

// (fault, message, rank, peer, tag, sequence)
using FailureTuple = std::tuple<int, std::string, int, int, std::int64_t, std::int64_t>;

struct BoundRequest {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<Request> request;
};

struct BoundQueue {
  std::shared_ptr<Engine> engine;
  std::shared_ptr<CompletionQueue> queue;
};

Failure to_failure(const FailureTuple& failure);
FailureTuple to_tuple(const Failure& failure);

// Return the key by which Python recognizes an operation when the operation has ended.
std::uintptr_t key_of(const std::shared_ptr<Request>& request);

void bind_operations(nanobind::module_& m);
void bind_open_operations(nanobind::module_& m);

}  // namespace slackline
