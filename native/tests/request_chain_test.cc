// Tests of the queues of ended operations, in which each operation refers to the next.
#include "../src/engine/request_chain.h"

#include <memory>
#include <vector>

#include "../src/engine/completion_queue.h"
#include "check.h"

namespace slackline::test {
namespace {

constexpr int kMany = 300'000;  // freed one within the other, these would take more than 8 MiB

TEST("operations leave a queue in the order in which they ended") {
  RequestChain<&Request::next_completed> chain;
  std::vector<std::shared_ptr<Request>> ended;
  for (int i = 0; i < 3; ++i) chain.push(ended.emplace_back(std::make_shared<Request>()));
  CHECK(chain.pop() == ended[0]);
  CHECK(chain.pop() == ended[1]);
  chain.push(ended[0]);
  CHECK(chain.pop() == ended[2]);
  CHECK(chain.pop() == ended[0]);
  CHECK(chain.empty());
}

TEST("a long queue of ended operations that nobody has taken is freed in a short stack") {
  std::weak_ptr<Request> first;
  {
    CompletionQueue queue;
    for (int i = 0; i < kMany; ++i) {
      auto request = std::make_shared<Request>();
      if (i == 0) first = request;
      queue.push(std::move(request));
    }
    CHECK(!first.expired());
  }
  CHECK(first.expired());
}

}  // namespace
}  // namespace slackline::test
