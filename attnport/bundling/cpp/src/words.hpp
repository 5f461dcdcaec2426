// Words for messages: the same as the Python reader's, whose messages come from repr() and str.join().
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/tensor.hpp>

namespace attnport::reader {

/// As repr() shows a text: quoted, and escaped where it holds what cannot be printed (see printable.hpp).
[[nodiscard]] std::string quoted(std::string_view text);

/// Parts with a separator between them.
[[nodiscard]] std::string joined(const std::vector<std::string>& parts, std::string_view separator = ", ");

/// As repr() shows a list of integers: `[2, 3]`.
[[nodiscard]] std::string listed(const std::vector<std::int64_t>& numbers);

/// As Python's `{:.1e}` and `{:.2e}` show a number: `1.2e-07`, `inf`, `nan`.
[[nodiscard]] std::string scientific(double number, int digits);

}  // namespace attnport::reader
