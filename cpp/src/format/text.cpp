#include "format/text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

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

bool is_printable(char32_t letter) noexcept {
    if (letter > largest_letter || (letter & 0xFFFEU) == 0xFFFEU) return false;
    const auto* span = std::lower_bound(not_printable.begin(), not_printable.end(), letter,
                                        [](const Span& one, char32_t wanted) { return one.last < wanted; });
    return span == not_printable.end() || letter < span->first;
}

/// Each byte of what cannot be printed as `\x1b`, but for the end of a line.
std::string without_controls(std::string_view text) {
    std::string result;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t from = at;
        const bool printable = is_printable(next_letter(text, at));
        for (const char byte : text.substr(from, at - from)) {
            if (printable) {
                result += byte;
            } else if (byte == '\n') {
                result += "\\n";
            } else {
                constexpr std::string_view digits = "0123456789abcdef";
                const auto number = static_cast<unsigned char>(byte);
                result.append("\\x").append(1, digits[number >> 4U]).append(1, digits[number & 0xFU]);
            }
        }
    }
    return result;
}

// Not snprintf: its decimal point is the locale's.
std::string written(double number, std::chars_format format, int digits) {
    if (std::isnan(number)) return "nan";
    if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
    std::array<char, 512> text{};  // the largest number has 309 digits before its point
    const auto end = std::to_chars(text.data(), text.data() + text.size(), number, format, digits);
    return {text.data(), end.ptr};
}

}  // namespace

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

std::string_view stripped(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n\v\f";
    text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
    return text.substr(0, text.find_last_not_of(blanks) + 1);  // npos + 1 is 0
}

std::string escaped(std::string_view text) { return without_controls(stripped(text)); }

std::string Quoted::operator()(std::string_view text) const { return "'" + without_controls(text) + "'"; }

std::string shown(const std::string& name) { return is_printable(name) ? name : quoted(name); }

std::string cut(std::string_view text, std::size_t most) {
    if (letters(text) <= most) return std::string(text);
    std::size_t at = 0;
    for (std::size_t left = most - 3; left > 0; --left) next_letter(text, at);
    return std::string(text.substr(0, at)) + "...";
}

std::string joined(const std::vector<std::string>& parts, std::string_view separator) {
    std::string text;
    for (std::size_t index = 0; index < parts.size(); ++index) {
        if (index != 0) text += separator;
        text += parts[index];
    }
    return text;
}

std::string listed(const std::vector<std::int64_t>& numbers) {
    std::vector<std::string> parts;
    parts.reserve(numbers.size());
    for (const auto number : numbers) parts.push_back(std::to_string(number));
    return "[" + joined(parts) + "]";
}

std::string fixed(double number, int digits) { return written(number, std::chars_format::fixed, digits); }

std::string scientific(double number, int digits) { return written(number, std::chars_format::scientific, digits); }

}  // namespace attnport::reader
