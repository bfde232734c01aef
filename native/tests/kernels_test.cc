#include "slackline/kernels.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../src/kernels/table.h"
#include "check.h"
#include "float_modes.h"
#include "kernels_reference.h"
#include "slackline/fingerprint.h"

namespace {

using namespace slackline;
using namespace slackline::test;
using wire::DType;
using wire::ReduceOp;

constexpr ReduceOp kOps[] = {ReduceOp::kSum,  ReduceOp::kAvg,  ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProd, ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor};
constexpr std::size_t kCounts[] = {0, 1, 3, 63, 64, 65, 1000, 4097};
constexpr std::size_t kLongest = 4097;
constexpr int kMostRanks = 8;

std::vector<const kernels::Table*> tables() {
  std::vector<const kernels::Table*> found;
  while (const auto* next = kernels::available(static_cast<int>(found.size())))
    found.push_back(next);
  return found;
}

// Return a value with random bits. Of the floats an eighth each are NaNs with random payloads,
// quiet and signalling, and subnormals, whose pairs must occur; a sixteenth are infinities. Half of
// the values are near 1, so that not all sums are infinite.
template <class T>
T any(std::mt19937_64& random) {
  const std::uint64_t bits = random();
  T value;
  std::memcpy(&value, &bits, sizeof value);
  if constexpr (std::is_same_v<T, Truth>) {
    if (bits >> 63) value.bits = 0;
  } else if constexpr (!std::is_integral_v<T>) {
    using Bits = BitsOf<T>;
    const Bits exponent = exponent_mask<T>();
    const auto drawn = static_cast<Bits>(bits);
    if (bits >> 63) {
      const auto near = static_cast<float>(static_cast<double>(bits % 4096) / 1024 - 2);
      return rounded<T>(static_cast<decltype(accumulate(T()))>(near));
    }
    switch (bits >> 59 & 0xf) {
      case 0:
      case 1:
        return std::bit_cast<T>(static_cast<Bits>(drawn | exponent | 1));  // a NaN
      case 2:
      case 3:
        return std::bit_cast<T>(static_cast<Bits>(drawn & ~exponent));  // a subnormal
      case 4:
        return std::bit_cast<T>(static_cast<Bits>((drawn & ~(exponent - 1)) | exponent));
      default:
        return value;
    }
  }
  return value;
}

template <class T>
std::vector<T> many(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = any<T>(random);
  return values;
}

template <class T>
bool same(std::span<const T> actual, std::span<const T> expected) {
  return std::memcmp(actual.data(), expected.data(), actual.size_bytes()) == 0;
}

template <class T>
std::vector<T> reference(ReduceOp op, const std::vector<std::vector<T>>& sources, int n) {
  std::vector<T> result(sources[0].size());
  for (std::size_t i = 0; i < result.size(); ++i) {
    auto value = accumulate(sources[0][i]);
    for (int s = 1; s < n; ++s) value = apply(op, value, accumulate(sources[s][i]));
    if constexpr (!std::is_same_v<T, Truth>) {
      if (op == ReduceOp::kAvg) value = divided(value, n);
    }
    result[i] = rounded<T>(settled(op, value));
  }
  return result;
}

std::string name(const kernels::Table& table, DType dtype, ReduceOp op, int n, std::size_t count) {
  return std::string(table.name) + ", dtype " + std::to_string(static_cast<int>(dtype)) + ", op " +
         std::to_string(static_cast<int>(op)) + ", " + std::to_string(n) + " sources of " +
         std::to_string(count);
}

// Return the numbers of the modes in turn: every kernel must work under each of them.
int next_modes() {
  static int number = 0;
  return number = (number + 1) % kThreadModes;
}

// Reduce `count` elements that start `shift` elements (and a few more in each target) after an
// aligned address, and check every target and the bytes around it.
template <class T>
void check_reduce(const kernels::Table& table, DType dtype, ReduceOp op,
                  const std::vector<std::vector<T>>& inputs, const std::vector<T>& expected, int n,
                  std::size_t count, std::size_t shift, bool streaming) {
  constexpr std::size_t kMargin = 80;
  constexpr int kTargets = 3;
  std::vector<std::vector<T>> outputs(kTargets, many<T>(kMargin, 99));
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (int s = 0; s < n; ++s) sources.push_back(inputs[s].data() + shift);
  const std::vector<T> margin = outputs[0];
  for (int t = 0; t < kTargets; ++t) {
    std::vector<T>& output = outputs[t];
    output.insert(output.begin() + 8 + shift + t, count, T());
    targets.push_back(output.data() + 8 + shift + t);
  }
  {
    const ThreadModes modes(next_modes());
    table.reduce(dtype, op, sources.data(), n, targets.data(), kTargets, count, n, streaming);
    if (!modes.kept()) fail(name(table, dtype, op, n, count) + ": changed the thread's modes");
  }
  for (int t = 0; t < kTargets; ++t) {
    const auto first = outputs[t].begin() + 8 + shift + t;
    if (!same<T>({first, first + count}, std::span(expected).subspan(shift, count)))
      fail(name(table, dtype, op, n, count) + ", target " + std::to_string(t));
    outputs[t].erase(first, first + count);
    if (std::memcmp(outputs[t].data(), margin.data(), kMargin * sizeof(T)) != 0)
      fail(name(table, dtype, op, n, count) + ": wrote outside target " + std::to_string(t));
  }
}

template <class T>
std::vector<std::vector<T>> inputs_of(DType dtype, std::size_t count) {
  std::vector<std::vector<T>> inputs;
  for (int s = 0; s < kMostRanks; ++s)
    inputs.push_back(many<T>(count, static_cast<unsigned>(dtype) * 100u + s));
  return inputs;
}

}  // namespace

TEST("reduce follows the numerics contract for every dtype, operation, count, alignment and ISA") {
  for_each_dtype([]<class T>(DType dtype, T) {
    const auto inputs = inputs_of<T>(dtype, kLongest + 40);
    for (const ReduceOp op : kOps) {
      if (!kernels::supported(dtype, op)) continue;
      for (int n = 1; n <= kMostRanks; ++n) {
        const std::vector<T> expected = reference(op, inputs, n);
        for (const auto* table : tables()) {
          for (const std::size_t count : kCounts) {
            for (const std::size_t shift : {0, 1, 33}) {
              const bool streaming = (n + shift) % 2 == 0;
              check_reduce(*table, dtype, op, inputs, expected, n, count, shift, streaming);
            }
          }
        }
      }
    }
  });
}

TEST("reduce leaves the same result in every source when the sources are the targets") {
  for_each_dtype([]<class T>(DType dtype, T) {
    const auto inputs = inputs_of<T>(dtype, 1000);
    for (const auto* table : tables()) {
      for (const bool streaming : {false, true}) {
        for (int n : {1, 2, 4, 7}) {
          auto buffers = inputs;
          std::vector<const void*> sources;
          std::vector<void*> targets;
          for (int s = 0; s < n; ++s) sources.push_back(buffers[s].data());
          for (int s = n; s-- > 0;) targets.push_back(buffers[s].data());
          table->reduce(dtype, ReduceOp::kMax, sources.data(), n, targets.data(), n, 1000, n,
                        streaming);
          const std::vector<T> expected = reference(ReduceOp::kMax, inputs, n);
          for (int s = 0; s < n; ++s) CHECK(same<T>(buffers[s], expected));
        }
      }
    }
  });
}

TEST("the modes of the calling thread change no bit, for every dtype, operation and ISA") {
  for_each_dtype([]<class T>(DType dtype, T) {
    const auto inputs = inputs_of<T>(dtype, 200);
    for (const ReduceOp op : kOps) {
      if (!kernels::supported(dtype, op)) continue;
      const std::vector<T> expected = reference(op, inputs, 3);
      for (const auto* table : tables()) {
        for (int number = 0; number < kThreadModes; ++number) {
          const void* const sources[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
          std::vector<T> result(expected.size());
          void* const target = result.data();
          const ThreadModes modes(number);
          table->reduce(dtype, op, sources, 3, &target, 1, result.size(), 3, false);
          CHECK(modes.kept());
          if (!same<T>(result, expected))
            fail(name(*table, dtype, op, 3, 200) + ", modes " + std::to_string(number));
        }
      }
    }
  });
}

TEST("add is a reduce of two, divides by what it is told, and may write over either operand") {
  for_each_dtype([]<class T>(DType dtype, T) {
    const auto inputs = inputs_of<T>(dtype, 777);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
      const std::vector<T> expected = reference(op, inputs, 2);
      std::vector<T> incoming = inputs[0];
      std::vector<T> mine = inputs[1];
      kernels::add(dtype, op, incoming.data(), mine.data(), mine.data(), 777, 1);
      CHECK(same<T>(mine, expected));
      kernels::add(dtype, op, incoming.data(), inputs[1].data(), incoming.data(), 777, 1);
      CHECK(same<T>(incoming, expected));
    }
  });
  const float incoming = 7;
  const float mine = 3;
  float target = 0;
  kernels::add(DType::kFloat32, ReduceOp::kAvg, &incoming, &mine, &target, 1, 5);
  CHECK_EQUAL(target, 2.0f);
  kernels::add(DType::kFloat32, ReduceOp::kAvg, &incoming, &mine, &target, 1, 1);
  CHECK_EQUAL(target, 10.0f);
  kernels::add(DType::kFloat32, ReduceOp::kSum, &incoming, &mine, &target, 1, 5);
  CHECK_EQUAL(target, 10.0f);
}

TEST("integer averages truncate towards zero at the ends of the range") {
  const std::int32_t sums[] = {-7, 7, INT32_MIN, INT32_MAX, -1, 2};
  const std::int32_t zeros[6] = {};
  std::int32_t result[6];
  kernels::add(DType::kInt32, ReduceOp::kAvg, sums, zeros, result, 6, 3);
  const std::int32_t expected[] = {-2, 2, -715827882, 715827882, 0, 0};
  CHECK(std::memcmp(result, expected, sizeof result) == 0);
  const std::int8_t narrow[] = {-128, 127};
  std::int8_t quotient[2];
  kernels::add(DType::kInt8, ReduceOp::kAvg, narrow, zeros, quotient, 2, 1000);
  CHECK(quotient[0] == 0 && quotient[1] == 0);
}

TEST("wide partial sums round once, at the end of the chain") {
  const auto check = []<class T>(DType dtype, T) {
    const auto halves = inputs_of<T>(dtype, 1000);
    for (const auto* table : tables()) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kProd}) {
        for (const std::size_t count : {0, 1, 63, 64, 1000}) {
          std::vector<float> partial(count);
          std::vector<T> result = halves[3];
          const std::vector<T> expected = reference(op, halves, 4);
          const ThreadModes modes(next_modes());
          table->widen(dtype, halves[0].data(), partial.data(), count);
          for (int s : {1, 2})
            table->add_wide(dtype, op, partial.data(), halves[s].data(), partial.data(), count);
          table->finish_wide(dtype, op, partial.data(), halves[3].data(), result.data(), count, 4);
          CHECK(modes.kept());
          CHECK(same<T>(std::span(result).first(count), std::span(expected).first(count)));
        }
      }
    }
  };
  check(DType::kFloat16, Half());
  check(DType::kBfloat16, Brain());
}

TEST("every half value survives widening and rounding; NaNs keep their payloads in MAX alone") {
  const auto check = []<class T>(DType dtype, T, std::uint16_t infinity, std::uint16_t quiet) {
    for (const auto* table : tables()) {
      std::vector<std::uint16_t> bits(65536);
      for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
      std::vector<float> wide(bits.size());
      table->widen(dtype, bits.data(), wide.data(), bits.size());
      for (std::size_t i = 0; i < bits.size(); ++i) {
        const float expected = accumulate(T{bits[i]});
        CHECK(wide[i] == expected || (std::isnan(wide[i]) && std::isnan(expected)));
        CHECK(std::signbit(wide[i]) == std::signbit(expected));
      }
      const void* source = bits.data();
      std::vector<std::uint16_t> back(bits.size());
      void* target = back.data();
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
        table->reduce(dtype, op, &source, 1, &target, 1, bits.size(), 1, false);
        for (std::size_t i = 0; i < bits.size(); ++i) {
          const bool nan = (i & 0x7fff) > infinity;
          const std::size_t kept = op == ReduceOp::kMax ? i | quiet : std::size_t{infinity} | quiet;
          CHECK_EQUAL(back[i], nan ? kept : i);
        }
      }
    }
  };
  check(DType::kFloat16, Half(), 0x7c00, 0x0200);
  check(DType::kBfloat16, Brain(), 0x7f80, 0x0040);
}

TEST("rounding to a half is to the nearest, ties to even, around every half value") {
  const auto check = []<class T>(DType dtype, T) {
    std::vector<float> values;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float here = accumulate(T{static_cast<std::uint16_t>(bits)});
      const float next = accumulate(T{static_cast<std::uint16_t>(bits + 1)});
      const float middle = here / 2 + next / 2;
      for (const float value : {middle, std::nextafter(middle, here), std::nextafter(middle, next)})
        values.push_back(value);
    }
    std::mt19937 random(3);
    for (int i = 0; i < 200000; ++i)
      values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
    // Adding zero and dividing by one turns -0 into 0; any other value is only rounded.
    const std::vector<T> zeros(values.size(), T{0});
    for (const auto* table : tables()) {
      std::vector<T> result(values.size());
      table->finish_wide(dtype, ReduceOp::kSum, values.data(), zeros.data(), result.data(),
                         values.size(), 1);
      std::vector<T> expected(values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        expected[i] = rounded<T>(settled(ReduceOp::kSum, values[i] + 0.0f));
      CHECK(same<T>(result, expected));
    }
  };
  check(DType::kFloat16, Half());
  check(DType::kBfloat16, Brain());
}

TEST("every ISA has one fingerprint, under all modes, and a wrong kernel shows by its own pair") {
  const auto of = [](const std::vector<kernels::Fingerprint>& found) {
    std::vector<std::uint16_t> checksums;
    for (const auto& each : found) checksums.push_back(each.checksum);
    return checksums;
  };
  const std::vector<kernels::Fingerprint> expected = kernels::fingerprints();
  for (const auto* table : tables()) {
    const ThreadModes modes(next_modes());
    CHECK(of(kernels::fingerprints(*table)) == of(expected));
  }
  // A kernel that rounds one subnormal to zero.
  static const kernels::Table& right = *kernels::available(0);
  kernels::Table wrong = right;
  wrong.reduce = [](DType dtype, ReduceOp op, const void* const* sources, int n,
                    void* const* targets, int n_targets, std::size_t count, int divisor,
                    bool streaming) noexcept {
    right.reduce(dtype, op, sources, n, targets, n_targets, count, divisor, streaming);
    if (dtype != DType::kFloat32 || op != ReduceOp::kMax) return;
    float* const first = static_cast<float*>(targets[0]);
    for (std::size_t i = 0; i < count; ++i) {
      if (first[i] != 0 && std::fabs(first[i]) < std::numeric_limits<float>::min()) {
        first[i] = 0;
        return;
      }
    }
  };
  const auto found = kernels::fingerprints(wrong);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool pair = found[i].dtype == DType::kFloat32 && found[i].op == ReduceOp::kMax;
    CHECK_EQUAL(found[i].checksum != expected[i].checksum, pair);
  }
}

TEST("copy copies exactly its bytes, streaming or not") {
  const std::vector<unsigned char> from = many<unsigned char>(5000, 5);
  for (const auto* table : tables()) {
    for (const bool streaming : {false, true}) {
      for (const std::size_t bytes : {0, 1, 64, 255, 256, 1023, 1024, 4097}) {
        for (const std::size_t shift : {0, 1, 17, 64}) {
          std::vector<unsigned char> to(5000, 0xee);
          table->copy(to.data() + shift, from.data() + 3, bytes, streaming);
          std::vector<unsigned char> expected(5000, 0xee);
          std::copy_n(from.begin() + 3, bytes, expected.begin() + shift);
          CHECK(to == expected);
        }
      }
    }
  }
}

TEST("unsupported pairs are refused and leave memory alone") {
  CHECK(!kernels::supported(DType::kFloat32, ReduceOp::kBxor));
  CHECK(!kernels::supported(DType::kBfloat16, ReduceOp::kBand));
  CHECK(!kernels::supported(DType::kBool, ReduceOp::kAvg));
  CHECK(!kernels::supported(DType::kInt32, ReduceOp::kNone));
  CHECK(kernels::supported(DType::kBool, ReduceOp::kSum));
  const float value = 1;
  float target = 5;
  kernels::add(DType::kFloat32, ReduceOp::kBor, &value, &value, &target, 1, 1);
  CHECK_EQUAL(target, 5.0f);
}
