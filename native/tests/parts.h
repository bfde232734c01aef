// The parts of an engine without a thread, for tests of single parts.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "../src/engine/machine.h"
#include "../src/engine/wire_port.h"

namespace slackline::test {

struct Parts {
  explicit Parts(std::size_t arena_bytes = std::size_t{4} << 20)
      : options{.arena_bytes = arena_bytes, .progress_thread = false}, machine(options, log) {}
  ~Parts() { machine.links().clear(); }

  // Add a link without a rail to the table.
  Link& add(std::string name, const LinkOptions& given = {}) {
    Links& links = machine.links();
    return *links.find(links.add(machine.link_uses(), std::move(name), given));
  }

  const EngineOptions options;
  OperationLog log;
  Machine machine;
};

}  // namespace slackline::test
