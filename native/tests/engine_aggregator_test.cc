// Tests of aggregators: one rank adds for the workers of a group, and when the aggregator is lost,
// the workers continue without it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "../src/engine/worker.h"
#include "devices.h"
#include "frames.h"
#include "trees.h"

namespace slackline::test {
namespace {

constexpr std::uint32_t kFallbackEpoch = 1000;

// Workers 0 to n - 1, and an aggregator on the last engine.
struct Star {
  explicit Star(int workers, std::uint32_t onset = 1, Kind kind = Kind::kStream,
                std::optional<int> device_limit = std::nullopt)
      : ranks(workers + 1, kind, 1, small_engine(), device_limit.has_value()), workers(workers) {
    for (int rank = 0; rank < workers; ++rank) {
      std::vector<int> links = ranks.links[static_cast<std::size_t>(rank)];
      links.pop_back();
      fallbacks.push_back(ranks.engine(rank).open_group(kFallbackEpoch, rank, links, true));
      ranks.engine(rank).roles().fall_back(ranks.group(rank), fallbacks.back(),
                                           mesh(workers, rank));
    }
    const auto program = star(workers, workers);
    if (device_limit) {
      device =
          std::make_unique<NodeDevice>(ranks.engine(workers), ranks.groups.back(), *device_limit);
      program->offloads = true;
    }
    const Tree pairwise = even_tree(workers);
    const auto tree = star(workers, workers, &pairwise);
    tree->offloads = program->offloads;
    ranks.engine(workers).roles().serve(ranks.group(workers), program, onset, tree);
  }
  ~Star() {
    if (device) ranks.engine(workers).close(0);
  }

  std::shared_ptr<Request> post(int rank, const float* source, float* target, std::size_t count,
                                bool blocking, int tag = -1) {
    return ranks.engine(rank).post(
        ranks.group(rank), reduction(star(workers, rank), source, target, count, tag), blocking);
  }
  void all_reduce(int rank, std::size_t count, bool blocking = true) {
    std::vector<float> values = contributions(rank, count);
    finish(ranks.engine(rank), post(rank, values.data(), values.data(), count, blocking));
    check_sum(values.data(), count, workers);
  }
  // Add one node of each worker in a tree of so many leaves for each. The values are such that
  // another order has other bits.
  void reduce_nodes(int rank, std::size_t count, wire::ReduceOp op, bool blocking, int leaves = 2) {
    const Runs runs(leaves * workers, std::vector<int>(static_cast<std::size_t>(workers), leaves));
    std::vector<std::vector<float>> nodes;
    for (int i = 0; i < runs.leaves; ++i) {
      nodes.push_back(contributions(i, count));
      for (float& value : nodes.back()) value *= i % 3 == 0 ? 1e8f : 1.1f;
    }
    std::vector<float> expected = sum_of(nodes, root_of(runs.leaves));
    for (float& value : expected)
      value = op == wire::ReduceOp::kAvg ? value / static_cast<float>(runs.leaves) : value;
    const Tree tree = runs.tree();
    const auto program = star(workers, rank, &tree);
    program->repeated_by = mesh(workers, rank, &tree);
    std::vector<float> values = sum_of(nodes, runs.nodes[static_cast<std::size_t>(rank)]);
    Operation operation = reduction(program, values.data(), values.data(), count);
    operation.op = op;
    finish(ranks.engine(rank), ranks.engine(rank).post(ranks.group(rank), operation, blocking));
    CHECK(values == expected);
  }
  void kill() {
    for (int rank = 0; rank < workers; ++rank) ranks.cut(rank, workers, 0);
  }
  std::size_t replay_copies(int rank) { return ranks.group(rank).worker->copies(); }

  Ranks ranks;
  const int workers;
  std::vector<std::shared_ptr<Group>> fallbacks;
  std::unique_ptr<NodeDevice> device;
};

constexpr std::size_t kLengths[] = {0, 1, 15, 1000, 20'000, 100'003, 1'000'000};

TEST("an aggregator reduces every size, in place or not, and posts nothing") {
  for (const Kind kind : {Kind::kStream, Kind::kDatagram}) {
    for (const int workers : {2, 4}) {
      Star net(workers, 1, kind);
      on_every_rank(workers, [&](int rank) {
        for (const std::size_t count : kLengths) {
          net.all_reduce(rank, count, workers == 2);
          const std::vector<float> source = contributions(rank, count);
          std::vector<float> target(count, -1);
          finish(net.ranks.engine(rank), net.post(rank, source.data(), target.data(), count, true));
          check_sum(target.data(), count, workers);
          CHECK(source == contributions(rank, count));
        }
      });
    }
  }
}

TEST("an aggregator that waits for several segments, or for whole messages, gives the same sums") {
  for (const std::uint32_t onset : {3u, 100u, 1u << 30}) {
    Star net(3, onset);
    on_every_rank(3, [&](int rank) {
      for (const std::size_t count : kLengths) net.all_reduce(rank, count);
    });
  }
}

TEST("a device behind an aggregator adds, whatever the onset") {
  for (const std::uint32_t onset : {1u, 3u, 1u << 30}) {
    for (const Kind kind : {Kind::kStream, Kind::kDatagram}) {
      Star net(3, onset, kind, 1 << 30);
      on_every_rank(3, [&](int rank) {
        for (const std::size_t count : kLengths) net.all_reduce(rank, count);
      });
      CHECK(net.ranks.engine(3).counters()["device_frames_given"] > 0);
    }
  }
}

TEST("workers outlive the device of their aggregator") {
  for (const int limit : {0, 1, 20}) {
    Star net(3, 1, Kind::kStream, limit);
    on_every_rank(3, [&](int rank) {
      for (const std::size_t count : kLengths) net.all_reduce(rank, count);
      for (const std::size_t count : kLengths) net.all_reduce(rank, count, false);
    });
  }
}

TEST("workers may post by tag in any order") {
  Star net(3);
  on_every_rank(3, [&](int rank) {
    constexpr int kTags = 12;
    constexpr std::size_t kCount = 50'000;
    std::vector<std::vector<float>> values(kTags, contributions(rank, kCount));
    std::vector<std::shared_ptr<Request>> requests;
    for (int i = 0; i < kTags; ++i) {
      const int tag = (i * (rank + 5)) % kTags;  // of the strides 5, 6 and 7 only 6 divides 12
      if (rank == 1) {
        requests.push_back(net.post(rank, values[static_cast<std::size_t>(i)].data(),
                                    values[static_cast<std::size_t>(i)].data(), kCount, false, i));
      } else {
        auto& mine = values[static_cast<std::size_t>(tag)];
        requests.push_back(net.post(rank, mine.data(), mine.data(), kCount, false, tag));
      }
    }
    for (const auto& request : requests) finish(net.ranks.engine(rank), request);
    for (const auto& each : values) check_sum(each.data(), kCount, 3);
  });
}

TEST("what workers keep to repeat operations goes when everybody has the results") {
  Star net(2);
  on_every_rank(2, [&](int rank) {
    for (int i = 0; i < 200; ++i) net.all_reduce(rank, 3000);
  });
  CHECK(net.replay_copies(0) <= 100);
}

TEST("an aggregator adds one node of each worker in the order of a tree, and workers divide") {
  for (const Kind kind : {Kind::kStream, Kind::kDatagram}) {
    for (const int workers : {2, 3, 5}) {
      Star net(workers, 1, kind);
      on_every_rank(workers, [&](int rank) {
        for (const std::size_t count : kLengths) {
          net.reduce_nodes(rank, count, wire::ReduceOp::kSum, true);
          net.all_reduce(rank, count, false);
          net.reduce_nodes(rank, count, wire::ReduceOp::kAvg, false, 4);
        }
      });
    }
  }
}

TEST("a device behind an aggregator adds the nodes of two workers") {
  Star net(2, 1, Kind::kStream, 1 << 30);
  on_every_rank(2, [&](int rank) {
    net.reduce_nodes(rank, 20'000, wire::ReduceOp::kSum, true);
    net.reduce_nodes(rank, 20'000, wire::ReduceOp::kAvg, true);
  });
  CHECK(net.ranks.engine(2).counters()["device_frames_given"] > 0);
}

TEST("workers with other trees learn of the mismatch from their aggregator") {
  Star net(2);
  on_every_rank(2, [&](int rank) {
    const Tree tree =
        Runs(rank == 0 ? 4 : 8, rank == 0 ? std::vector{2, 2} : std::vector{4, 4}).tree();
    const auto program = star(2, rank, &tree);
    program->repeated_by = mesh(2, rank, &tree);
    std::vector<float> values(1000, 1.0f);
    const auto request = net.ranks.engine(rank).post(
        net.ranks.group(rank), reduction(program, values.data(), values.data(), 1000), true);
    CHECK(request->failure.fault == Fault::kMismatch);
  });
}

TEST("ranks that disagree about an operation are told so, and nobody repeats it") {
  Star net(2);
  on_every_rank(2, [&](int rank) {
    const std::size_t count = rank == 0 ? 1000 : 1001;
    std::vector<float> values = contributions(rank, count);
    const auto request = net.post(rank, values.data(), values.data(), count, true);
    CHECK(request->failure.fault == Fault::kMismatch);
  });
}

// Post operations at every rank, and lose the aggregator while they are in progress.
void lose_it(Star& net, std::size_t count, const std::function<void()>& lose, int delay_us) {
  constexpr int kOperations = 30;
  std::jthread killer([&] {
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    lose();
  });
  on_every_rank(net.workers, [&](int rank) {
    std::vector<std::vector<float>> values(kOperations, contributions(rank, count));
    std::vector<std::shared_ptr<Request>> requests;
    for (int i = 0; i < kOperations; ++i) {
      auto& mine = values[static_cast<std::size_t>(i)];
      requests.push_back(net.post(rank, mine.data(), mine.data(), count, false, i % 3 - 1));
    }
    for (const auto& request : requests) finish(net.ranks.engine(rank), request);
    for (const auto& each : values) check_sum(each.data(), count, net.workers);
    net.all_reduce(rank, count);
  });
  killer.join();
  on_every_rank(net.workers, [&](int rank) { net.all_reduce(rank, count, false); });
}

TEST("an aggregator that dies in the middle of messages changes no bit") {
  for (const int delay_us : {0, 300, 1000, 3000, 8000, 20'000}) {
    for (const std::size_t count : {300u, 200'000u}) {
      Star net(4);
      lose_it(net, count, [&] { net.kill(); }, delay_us);
    }
  }
}

TEST("an aggregator that dies in the middle of a tree's sums changes no bit") {
  for (const int delay_us : {0, 1000, 8000}) {
    Star net(3);
    std::jthread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
      net.kill();
    });
    on_every_rank(3, [&](int rank) {
      for (int i = 0; i < 10; ++i) {
        net.reduce_nodes(rank, 60'000, wire::ReduceOp::kSum, false);
        net.reduce_nodes(rank, 60'000, wire::ReduceOp::kAvg, false, 4);
      }
    });
    killer.join();
    on_every_rank(3,
                  [&](int rank) { net.reduce_nodes(rank, 20'000, wire::ReduceOp::kAvg, true, 4); });
  }
}

TEST("one worker that loses the aggregator takes the others with it") {
  for (const int delay_us : {0, 500, 2000, 10'000}) {
    for (const std::size_t count : {300u, 200'000u}) {
      Star net(4);
      lose_it(net, count, [&] { net.ranks.cut(2, 4, 0); }, delay_us);
    }
  }
}

TEST("a worker that has the result helps those that have not") {
  Star net(3);
  constexpr std::size_t kCount = 2000;
  std::atomic<int> done{0};
  // Rank 2 receives its results late, so the operation is finished at the other ranks and still
  // open at rank 2.
  FaultState late;
  late.delay_ns = 300'000'000;
  net.ranks.engine(3).connections().set_fault(net.ranks.link(3, 2), -1, late);
  on_every_rank(3, [&](int rank) {
    std::vector<float> values = contributions(rank, kCount);
    const auto request = net.post(rank, values.data(), values.data(), kCount, false);
    if (rank < 2) {
      finish(net.ranks.engine(rank), request);
      check_sum(values.data(), kCount, 3);
      std::fill(values.begin(), values.end(), -7.0f);  // the memory belongs to the caller again
      if (++done == 2) net.kill();
    } else {
      finish(net.ranks.engine(rank), request);
      check_sum(values.data(), kCount, 3);
    }
  });
}

// Rank 0 repeats an operation that rank 2 has finished and rank 1 has not finished. The late result
// must not make rank 2 drop the copy of its contribution.
TEST("a worker that has moved an operation to the fallback acknowledges no result of it") {
  Star net(3);
  constexpr std::size_t kCount =
      300'000;  // exceeds the amount at which the aggregator reports finished results
  const auto delay = [&](int from, int to, std::int64_t by_ns) {
    FaultState late;
    late.delay_ns = by_ns;
    net.ranks.engine(from).connections().set_fault(net.ranks.link(from, to), -1, late);
  };
  delay(3, 1, 300'000'000);  // delays the result
  for (const int from : {0, 1})
    delay(from, 2, 1'500'000'000);  // delays the repetition of the operation
  on_every_rank(3, [&](int rank) {
    std::vector<float> values = contributions(rank, kCount);
    const std::vector<float> again = values;
    finish(net.ranks.engine(rank), net.post(rank, values.data(), values.data(), kCount, false));
    check_sum(values.data(), kCount, 3);
    if (rank != 0) return;
    const auto request = net.ranks.engine(0).post(
        *net.fallbacks[0], reduction(mesh(3, 0), again.data(), values.data(), kCount, -1), false);
    finish(net.ranks.engine(0), request);
    check_sum(values.data(), kCount, 3);
  });
  CHECK(net.ranks.group(1).broken);
}

TEST("a worker that dies is named, though the aggregator lives") {
  Star net(3);
  on_every_rank(2, [&](int rank) {
    std::vector<float> values = contributions(rank, 100'000);
    const auto request = net.post(rank, values.data(), values.data(), 100'000, false);
    if (rank == 0) {
      for (const int peer : {0, 1}) net.ranks.cut(peer, 2, 0);
      net.ranks.cut(2, 3, 0);
    }
    net.ranks.engine(rank).wait(*request, -1);
    CHECK(request->failure.fault == Fault::kPeer);
    CHECK(request->failure.peer == 2);
  });
}

}  // namespace
}  // namespace slackline::test
