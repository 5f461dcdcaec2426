// Which code points may reach a terminal: FORMAT.md, "Text".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace attnport::reader {

/// Whether a code point is no control, format, separator (but the space), surrogate, private-use or noncharacter.
[[nodiscard]] bool is_printable(char32_t letter) noexcept;

/// Whether a text is UTF-8 of printable characters.
[[nodiscard]] bool is_printable(std::string_view text) noexcept;

/// Whether a text is UTF-8.
[[nodiscard]] bool is_utf8(std::string_view text) noexcept;

/// The number of code points of UTF-8 text.
[[nodiscard]] std::size_t letters(std::string_view text) noexcept;

inline constexpr char32_t no_letter = 0xFFFFFFFF;

/// The code point at `at`, which moves behind it; `no_letter`, and one byte further, where the bytes are no UTF-8.
char32_t next_letter(std::string_view text, std::size_t& at) noexcept;

/// Appends a code point as UTF-8.
void append_letter(std::string& text, char32_t letter);

}  // namespace attnport::reader
