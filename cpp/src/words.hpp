// Words for messages: the same as the Python reader's, whose messages come from repr() and str.join().
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/tensor.hpp>

namespace attnport::reader {

/// As repr() shows a text: quoted, and escaped where it holds what cannot be printed (see printable.hpp).
struct Quoted {
    [[nodiscard]] std::string operator()(std::string_view text) const;
    /// Of code points, which may be halves of a surrogate pair; `ascii_only`: as Python's ascii() shows them.
    [[nodiscard]] std::string operator()(const std::u32string& letters, bool ascii_only) const;
};
/// An object, since of functions of this name the call quoted(text) would mean std::quoted, found by its argument.
inline constexpr Quoted quoted{};

/// What a runtime or parser said, as a terminal may see it: it may repeat text of a model file. Without blanks around
/// it, and each character that cannot be printed escaped as Python's repr() has it: on one line.
[[nodiscard]] std::string escaped(std::string_view text);

/// The code points of a text; a byte that is no UTF-8 is half of a surrogate pair, as Python has it in names of files.
[[nodiscard]] std::u32string code_points(std::string_view text);

/// At most so many code points of a text; one that is longer ends in `end`, which is among them.
[[nodiscard]] std::string cut(std::string_view text, std::size_t most, std::string_view end = "...");

/// Parts with a separator between them.
[[nodiscard]] std::string joined(const std::vector<std::string>& parts, std::string_view separator = ", ");

/// As repr() shows a list of integers: `[2, 3]`.
[[nodiscard]] std::string listed(const std::vector<std::int64_t>& numbers);

/// As repr() shows a list of texts: `['a', 'b']`.
[[nodiscard]] std::string listed(const std::vector<std::string>& texts);

/// As repr() shows a float: the fewest digits that are read as the same number.
[[nodiscard]] std::string shortest(double number);

/// As Python's `{:.1f}` shows a number.
[[nodiscard]] std::string fixed(double number, int digits);

/// As Python's `{:.1e}` and `{:.2e}` show a number: `1.2e-07`, `inf`, `nan`.
[[nodiscard]] std::string scientific(double number, int digits);

}  // namespace attnport::reader
