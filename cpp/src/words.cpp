#include "words.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "printable.hpp"

namespace attnport::reader {
namespace {

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
