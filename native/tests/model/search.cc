#include "search.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace slackline::model {
namespace {

using Number = std::uint32_t;

constexpr int kMostToFinish = 1000;  // events; the longest walk of the tests needs a tenth

struct Fork {
  Number state;
  std::vector<Event> events;
  std::size_t next = 0;
};

class Search {
 public:
  Search(const Setting& setting, std::uint64_t most) : setting_(setting), most_(most) {}

  Explored run() {
    world_ = std::make_unique<World>(setting_);
    enter();
    while (!forks_.empty()) {
      Fork& fork = forks_.back();
      if (fork.next == fork.events.size()) {
        forks_.pop_back();
        if (!way_.empty()) way_.pop_back();
        world_.reset();
        continue;
      }
      const Event event = fork.events[fork.next++];
      const Number from = fork.state;
      if (world_ == nullptr) replay();
      way_.push_back(event);
      step(event);
      ++result_.transitions;
      const auto [to, fresh] = number_of_now();
      if (World::normal(event)) normal_edges_.emplace_back(from, to);
      if (fresh && result_.states < most_) {
        enter();
      } else {
        result_.complete = result_.complete && !fresh;
        way_.pop_back();
        world_.reset();
      }
    }
    judge();
    return std::move(result_);
  }

 private:
  void step(const Event& event) try {
    world_->happen(event);
  } catch (const test::Failure& failure) {
    throw test::Failure(std::string(setting_.name) + ": " + failure.what() + "\n" + text(way_));
  }

  void replay() {
    world_ = std::make_unique<World>(setting_);
    for (const Event& event : way_) world_->happen(event);
  }

  std::pair<Number, bool> number_of_now() {
    const std::size_t hash = std::hash<std::string>()(world_->state());
    const auto [it, fresh] = numbers_.emplace(hash, static_cast<Number>(numbers_.size()));
    return {it->second, fresh};
  }

  void enter() {
    const Number number = number_of_now().first;
    ++result_.states;
    result_.longest = std::max(result_.longest, way_.size());
    if (parents_.size() <= number) parents_.resize(number + 1);
    if (!way_.empty()) parents_[number] = Parent{forks_.back().state, way_.back()};
    if (world_->quiet()) quiet_.push_back(number);
    forks_.push_back(Fork{number, world_->events()});
  }

  // Count the states from which no quiet state (all operations finished) can be reached by normal
  // events, by walking backwards from the quiet states.
  void judge() {
    result_.quiet_states = quiet_.size();
    std::vector<std::vector<Number>> before(numbers_.size());
    for (const auto& [from, to] : normal_edges_) before[to].push_back(from);
    std::vector<bool> reaches(numbers_.size());
    std::vector<Number> open = quiet_;
    for (const Number number : open) reaches[number] = true;
    while (!open.empty()) {
      const Number at = open.back();
      open.pop_back();
      for (const Number number : before[at]) {
        if (reaches[number]) continue;
        reaches[number] = true;
        open.push_back(number);
      }
    }
    if (!result_.complete) return;
    for (Number number = 0; number < numbers_.size(); ++number) {
      if (reaches[number]) continue;
      if (result_.stuck_states++ > 0) continue;
      for (Number at = number; at != 0; at = parents_[at].state)
        result_.way_to_stuck.insert(result_.way_to_stuck.begin(), parents_[at].event);
    }
  }

  struct Parent {
    Number state = 0;
    Event event{};
  };

  const Setting setting_;
  const std::uint64_t most_;
  Explored result_;
  std::unique_ptr<World> world_;
  std::vector<Event> way_;
  std::vector<Fork> forks_;
  std::unordered_map<std::size_t, Number> numbers_;
  std::vector<Parent> parents_;
  std::vector<Number> quiet_;
  std::vector<std::pair<Number, Number>> normal_edges_;
};

}  // namespace

Explored explore(const Setting& setting, std::uint64_t most_states) {
  return Search(setting, most_states).run();
}

void finish(World& world, std::mt19937& random, std::vector<Event>& way) {
  for (int left = kMostToFinish; !world.quiet(); --left) {
    std::vector<Event> events = world.events();
    std::erase_if(events, [](const Event& event) { return !World::normal(event); });
    if (events.empty() || left == 0) test::fail("no event leads on from here");
    way.push_back(events[random() % events.size()]);
    world.happen(way.back());
  }
}

Walked walk(const Setting& setting, unsigned seed, int walks, int most) {
  std::mt19937 random(seed);
  Walked walked;
  for (int i = 0; i < walks; ++i) {
    std::vector<Event> way;
    try {
      World world(setting);
      for (int steps = 0; steps < most; ++steps) {
        const std::vector<Event> events = world.events();
        if (events.empty()) break;
        way.push_back(events[random() % events.size()]);
        world.happen(way.back());
      }
      finish(world, random, way);
    } catch (const test::Failure& failure) {
      throw test::Failure(std::string(setting.name) + ", seed " + std::to_string(seed) + ": " +
                          failure.what() + "\n" + text(way));
    }
    walked.events += way.size();
    walked.faults += static_cast<std::uint64_t>(
        std::ranges::count_if(way, [](const Event& event) { return !World::normal(event); }));
  }
  return walked;
}

std::string text(const std::vector<Event>& events) {
  std::string text;
  for (const Event& event : events) text += "  " + event.text() + "\n";
  return text;
}

}  // namespace slackline::model
