// Sizes as expressions of dims, such as `past+seq`; see FORMAT.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace attnport::reader {

/// Why a text is no expression of these dims; "" if it is one.
[[nodiscard]] std::string expression_problem(std::string_view text, const std::set<std::string>& dims);

/// The size that a name has in this call; none if it has none.
using SizeOf = std::function<std::optional<std::int64_t>(std::string_view)>;

/// The value of an expression, 0 or more; none for text that is none, a dim without a size, a division by zero or less,
/// or a value that is too large, or below zero at the end.
[[nodiscard]] std::optional<std::int64_t> value_of(std::string_view text, const SizeOf& size_of);

}  // namespace attnport::reader
