// A queue of operations in which each operation refers to the next: adding one takes no memory.
#pragma once

#include <memory>
#include <utility>

#include "request.h"

namespace slackline {

// `Next` is the member by which an operation refers to the next one of this queue.
template <std::shared_ptr<Request> RequestEnd::* Next>
class RequestChain {
 public:
  RequestChain() = default;
  RequestChain(const RequestChain&) = delete;
  RequestChain& operator=(const RequestChain&) = delete;
  // Free one operation after another: if each freed the next one, a long queue would take a long
  // stack.
  ~RequestChain() {
    while (!empty()) pop();
  }

  bool empty() const { return first_ == nullptr; }

  void push(std::shared_ptr<Request> request) noexcept {
    Request* last = request.get();
    (last_ == nullptr ? first_ : last_->*Next) = std::move(request);
    last_ = last;
  }

  // Remove the first operation and return it. The queue must not be empty.
  std::shared_ptr<Request> pop() noexcept {
    std::shared_ptr<Request> first = std::move(first_);
    first_ = std::move((*first).*Next);
    if (first_ == nullptr) last_ = nullptr;
    return first;
  }

 private:
  std::shared_ptr<Request> first_;
  Request* last_ = nullptr;
};

}  // namespace slackline
