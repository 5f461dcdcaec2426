// JSON text from an untrusted file into a tree: strict, bounded, and without surprises. See manifest.hpp for its use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ordered.hpp"

namespace attnport::reader {

inline constexpr int max_depth = 32;

/// An integer that no double holds, or that 64 bits do not: it is no value of any field, and is kept for the message.
struct BigInteger {
    std::string text;
};

struct Value;
using Array = std::vector<Value>;
using Object = Ordered<Value>;

/// A parsed value. Objects keep their order. Text is UTF-8, but for halves of a surrogate pair, which JSON may hold:
/// those are three bytes that are no UTF-8.
struct Value {
    std::variant<std::nullptr_t, bool, std::int64_t, BigInteger, double, std::string, Array, Object> value;

    template <class T> [[nodiscard]] const T* get() const { return std::get_if<T>(&value); }
};

/// Parses JSON text. Throws IntegrityError naming `where`: no JSON, a duplicate key, NaN or Inf, a number out of
/// range, text that is no UTF-8, nesting deeper than 32, or a byte order mark.
[[nodiscard]] Value parse(std::string_view data, const std::string& where);

/// As Python's repr() would show it.
[[nodiscard]] std::string repr(const Value& value);

/// As Python's repr() would show it, cut to 60 characters: messages of both readers are the same.
[[nodiscard]] std::string brief(const Value& value);

}  // namespace attnport::reader
