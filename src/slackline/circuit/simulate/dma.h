// The host's memory behind a circuit's DMA streams. Requests are answered from this process's
// memory, within the regions that were lent to the circuit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

struct Dma {
  struct Region {
    std::uint64_t address;
    std::uint64_t bytes;
    bool writable;
  };
  struct Request {
    std::uint64_t address;
    std::uint32_t bytes;
  };

  std::vector<Region> lent;
  std::deque<Request> writes;  // requests whose data have not all come
  std::uint64_t latency = 0;   // cycles from a read request to its first beat
  std::uint64_t faults = 0;    // requests and beats outside of the lent regions
  std::uint64_t fault = 0;     // the address of the first fault

  static Request parse(const std::uint8_t* payload) {
    Request request;
    std::memcpy(&request.address, payload, sizeof request.address);
    std::memcpy(&request.bytes, payload + sizeof request.address, sizeof request.bytes);
    return request;
  }

  bool allowed(const Request& request, bool writes_it) {
    const auto inside = [&](const Region& region) {
      return region.writable >= writes_it && request.address >= region.address &&
             request.bytes <= region.bytes &&
             request.address - region.address <= region.bytes - request.bytes;
    };
    if (std::any_of(lent.begin(), lent.end(), inside)) return true;
    if (faults++ == 0) fault = request.address;
    return false;
  }

  // Append the beats of a read to `beats`. A beat has `data` bytes and one byte of flags; behind
  // the last byte read there are zeros.
  void read(const Request& request, std::size_t data, std::uint8_t last,
            std::vector<std::uint8_t>& beats) {
    const bool right = allowed(request, false);
    const auto* memory = reinterpret_cast<const std::uint8_t*>(request.address);
    for (std::size_t at = 0; at < request.bytes; at += data) {
      const std::size_t part = std::min<std::size_t>(data, request.bytes - at);
      const std::size_t begin = beats.size();
      beats.resize(begin + data + 1, 0);
      if (right) std::memcpy(&beats[begin], memory + at, part);
      beats[begin + data] = at + part == request.bytes ? last : 0;
    }
  }

  void ask_to_write(const Request& request) {
    writes.push_back(request);
    if (!allowed(request, true)) writes.back().address = 0;
  }

  // Write one beat of the oldest write request to memory.
  void write(const std::uint8_t* beat, std::size_t data) {
    if (writes.empty()) {
      ++faults;
      return;
    }
    Request& request = writes.front();
    const std::size_t part = std::min<std::size_t>(data, request.bytes);
    if (request.address != 0) {
      std::memcpy(reinterpret_cast<std::uint8_t*>(request.address), beat, part);
      request.address += part;
    }
    request.bytes -= static_cast<std::uint32_t>(part);
    if (request.bytes == 0) writes.pop_front();
  }
};
