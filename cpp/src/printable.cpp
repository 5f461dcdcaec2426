#include "printable.hpp"

#include <algorithm>
#include <array>

namespace attnport::reader {

namespace {

struct Span {
    char32_t first;
    char32_t last;
};

// A fixed table, so that every reader of the format, with whatever release of Unicode, gives one answer. The last two
// code points of each plane are no characters either; see is_printable.
constexpr std::array<Span, 28> not_printable = {{
    {0x00, 0x1F},        {0x7F, 0xA0},        {0xAD, 0xAD},        {0x600, 0x605},      {0x61C, 0x61C},
    {0x6DD, 0x6DD},      {0x70F, 0x70F},      {0x890, 0x891},      {0x8E2, 0x8E2},      {0x1680, 0x1680},
    {0x180E, 0x180E},    {0x2000, 0x200F},    {0x2028, 0x202F},    {0x205F, 0x2064},    {0x2066, 0x206F},
    {0x3000, 0x3000},    {0xD800, 0xF8FF},    {0xFDD0, 0xFDEF},    {0xFEFF, 0xFEFF},    {0xFFF9, 0xFFFB},
    {0x110BD, 0x110BD},  {0x110CD, 0x110CD},  {0x13430, 0x1343F},  {0x1BCA0, 0x1BCA3},  {0x1D173, 0x1D17A},
    {0xE0001, 0xE0001},  {0xE0020, 0xE007F},  {0xF0000, 0x10FFFF},
}};

constexpr char32_t largest_letter = 0x10FFFF;

constexpr char32_t byte_at(std::string_view text, std::size_t at) noexcept {
    return static_cast<unsigned char>(text[at]);
}

}  // namespace

bool is_printable(char32_t letter) noexcept {
    if (letter > largest_letter || (letter & 0xFFFEU) == 0xFFFEU) return false;
    const auto* span = std::lower_bound(not_printable.begin(), not_printable.end(), letter,
                                        [](const Span& one, char32_t wanted) { return one.last < wanted; });
    return span == not_printable.end() || letter < span->first;
}

bool is_printable(std::string_view text) noexcept {
    for (std::size_t at = 0; at < text.size();) {
        if (!is_printable(next_letter(text, at))) return false;
    }
    return true;
}

bool is_utf8(std::string_view text) noexcept {
    for (std::size_t at = 0; at < text.size();) {
        if (next_letter(text, at) == no_letter) return false;
    }
    return true;
}

std::size_t letters(std::string_view text) noexcept {
    std::size_t count = 0;
    for (std::size_t at = 0; at < text.size(); ++count) next_letter(text, at);
    return count;
}

char32_t next_letter(std::string_view text, std::size_t& at) noexcept {
    const char32_t first = byte_at(text, at++);
    if (first < 0x80) return first;
    if (first < 0xC2 || first > 0xF4) return no_letter;
    const std::size_t more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (more > text.size() - at) return no_letter;
    char32_t letter = first & (0x3FU >> more);
    for (std::size_t index = 0; index < more; ++index) {
        const char32_t byte = byte_at(text, at + index);
        if ((byte & 0xC0U) != 0x80) return no_letter;
        letter = letter << 6U | (byte & 0x3FU);
    }
    const bool longer_than_needed = (more == 2 && letter < 0x800) || (more == 3 && letter < 0x10000);
    if (longer_than_needed || letter > largest_letter || (letter >= 0xD800 && letter <= 0xDFFF)) return no_letter;
    at += more;
    return letter;
}

void append_letter(std::string& text, char32_t letter) {
    const auto add = [&text](char32_t byte) { text.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
    if (letter < 0x80) return add(letter);
    if (letter < 0x800) {
        add(0xC0U | letter >> 6U);
    } else {
        if (letter < 0x10000) {
            add(0xE0U | letter >> 12U);
        } else {
            add(0xF0U | letter >> 18U);
            add(0x80U | (letter >> 12U & 0x3FU));
        }
        add(0x80U | (letter >> 6U & 0x3FU));
    }
    add(0x80U | (letter & 0x3FU));
}

}  // namespace attnport::reader
