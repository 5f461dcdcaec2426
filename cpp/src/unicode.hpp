// What BERT's tokenizers ask about characters: the answers of Unicode in one version, see unicode_table.cpp.
#pragma once

#include <string>
#include <string_view>

#include "unicode_table.hpp"

namespace attnport::reader::unicode {

[[nodiscard]] Kind kind(char32_t letter) noexcept;

/// The text in canonical decomposition (NFD: The Unicode Standard, 3.11) without its nonspacing marks.
[[nodiscard]] std::u32string without_marks(std::u32string_view text);

/// The text in lower case, one character at a time: a sigma is the same one everywhere in a word.
[[nodiscard]] std::u32string lower_case(std::u32string_view text);

}  // namespace attnport::reader::unicode
