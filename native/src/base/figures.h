// Figures of messages for people.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace slackline {

// Return an amount of memory with three significant digits: "512 B", "64 KiB", "6.38 MiB".
inline std::string show_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  // Below these limits the number is not rounded up to a further digit.
  const int digits = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  std::string shown = text.data();
  if (digits > 0) {
    shown.erase(shown.find_last_not_of('0') + 1);
    if (shown.back() == '.') shown.pop_back();
  }
  return shown + " " + kUnits[unit];
}

}  // namespace slackline
