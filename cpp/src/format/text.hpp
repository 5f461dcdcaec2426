// UTF-8, and words for messages: in the locale "C", and as a terminal may see them (FORMAT.md, "Text").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace attnport::reader {

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

/// Without the blanks around it.
[[nodiscard]] std::string_view stripped(std::string_view text);

/// What a runtime or parser said, which may repeat text of a model file: without blanks around it, and with each byte
/// of what cannot be printed as `\x1b`, so that it is one line and changes nothing on a terminal.
[[nodiscard]] std::string escaped(std::string_view text);

/// A name in quotes, with what cannot be printed as in `escaped`.
struct Quoted {
    [[nodiscard]] std::string operator()(std::string_view text) const;
};
/// An object, since of functions of this name the call quoted(text) would mean std::quoted, found by its argument.
inline constexpr Quoted quoted{};

/// The name of a file or tensor: itself, or in quotes where it cannot be printed.
[[nodiscard]] std::string shown(const std::string& name);

/// At most so many characters of a text; one that is longer ends in `...`.
[[nodiscard]] std::string cut(std::string_view text, std::size_t most = 60);

/// Parts with a separator between them.
[[nodiscard]] std::string joined(const std::vector<std::string>& parts, std::string_view separator = ", ");

/// The names of what has one.
template <class T> [[nodiscard]] std::vector<std::string> names_of(const std::vector<T>& named) {
    std::vector<std::string> names;
    names.reserve(named.size());
    for (const T& one : named) names.push_back(one.name);
    return names;
}

/// The one of a name; null where there is none.
template <class T> [[nodiscard]] const T* find_named(const std::vector<T>& all, std::string_view name) {
    for (const T& one : all) {
        if (one.name == name) return &one;
    }
    return nullptr;
}

/// Such as `[2, 3]`.
[[nodiscard]] std::string listed(const std::vector<std::int64_t>& numbers);

/// With so many digits behind the point.
[[nodiscard]] std::string fixed(double number, int digits);

/// Such as `1.2e-07`, `inf`, `nan`.
[[nodiscard]] std::string scientific(double number, int digits);

}  // namespace attnport::reader
