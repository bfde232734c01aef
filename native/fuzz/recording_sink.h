// The sink to which a rail under test delivers its frames.
#pragma once

#include <memory>
#include <vector>

#include "choices.h"

namespace slackline::fuzz {

// A sink that keeps all frames. The sink's payload memory ends exactly at the end of the payload,
// so that a sanitizer detects overruns.
struct RecordingSink final : FrameSink {
  std::byte* direct_placement(Link&, const wire::Header& header, Request** request) override {
    CHECK(header.length <= kMaxPayload);
    if (!lands) return nullptr;
    *request = &owner;
    placements.push_back(std::make_unique<std::byte[]>(header.length));
    return placements.back().get();
  }
  void arrive(Link&, const wire::Header& header, const Payload& payload) override {
    CHECK_EQUAL(payload.length, header.length);
    frames.push_back(test::Frame{header, Bytes(payload.data, payload.data + payload.length)});
    if (payload.owned != nullptr) give_buffer(payload.owned);
  }
  std::byte* take_buffer(std::size_t bytes) override {
    CHECK(bytes <= kMaxPayload);
    ++buffers_out;
    return new std::byte[bytes];
  }
  void give_buffer(std::byte* buffer) override {
    --buffers_out;
    delete[] buffer;
  }
  bool lock_wanted() const override { return hurries; }

  bool lands = false;
  bool hurries = false;
  Request owner;
  std::vector<test::Frame> frames;
  std::vector<std::unique_ptr<std::byte[]>> placements;
  int buffers_out = 0;
};

inline void check_same(const test::Frame& got, const test::Frame& expected) {
  CHECK(std::memcmp(&got.header, &expected.header, sizeof got.header) == 0);
  CHECK(got.payload == expected.payload);
}

}  // namespace slackline::fuzz
