#include "words.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "printable.hpp"

namespace attnport::reader {

namespace {

void append_hex(std::string& text, char32_t number, unsigned digits) {
    for (unsigned left = digits; left-- > 0;) text.push_back("0123456789abcdef"[number >> 4U * left & 0xFU]);
}

void append_escaped(std::string& text, char32_t letter) {
    if (letter == U'\n' || letter == U'\r' || letter == U'\t') {
        text += letter == U'\n' ? "\\n" : letter == U'\r' ? "\\r" : "\\t";
    } else if (letter <= 0xFF) {
        text += "\\x";
        append_hex(text, letter, 2);
    } else if (letter <= 0xFFFF) {
        text += "\\u";
        append_hex(text, letter, 4);
    } else {
        text += "\\U";
        append_hex(text, letter, 8);
    }
}

}  // namespace

std::u32string code_points(std::string_view text) {
    std::u32string letters;
    letters.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t from = at;
        const char32_t letter = next_letter(text, at);
        // As Python's own file names have a byte that is no UTF-8: as half of a surrogate pair, which is not printable.
        letters.push_back(letter == 0xFFFFFFFF ? 0xDC00U + static_cast<unsigned char>(text[from]) : letter);
    }
    return letters;
}

std::string Quoted::operator()(const std::u32string& letters, bool ascii_only) const {
    const bool has_single = letters.find(U'\'') != std::u32string::npos;
    const char32_t quote = has_single && letters.find(U'"') == std::u32string::npos ? U'"' : U'\'';
    std::string result;
    append_letter(result, quote);
    for (const char32_t letter : letters) {
        if (letter == quote || letter == U'\\') result.push_back('\\');
        if (is_printable(letter) && !(ascii_only && letter >= 0x80)) {
            append_letter(result, letter);
        } else {
            append_escaped(result, letter);
        }
    }
    append_letter(result, quote);
    return result;
}

std::string Quoted::operator()(std::string_view text) const { return (*this)(code_points(text), false); }

std::string escaped(std::string_view text) {
    constexpr std::string_view blanks = " \t\r\n\v\f";
    text.remove_prefix(std::min(text.find_first_not_of(blanks), text.size()));
    text = text.substr(0, text.find_last_not_of(blanks) + 1);  // npos + 1 is 0
    std::string result;
    for (const char32_t letter : code_points(text)) {
        if (is_printable(letter)) {
            append_letter(result, letter);
        } else {
            append_escaped(result, letter);
        }
    }
    return result;
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

std::string listed(const std::vector<std::string>& texts) {
    std::vector<std::string> parts;
    parts.reserve(texts.size());
    for (const auto& text : texts) parts.push_back(quoted(text));
    return "[" + joined(parts) + "]";
}

namespace {

// Not snprintf: its decimal point is the locale's.
std::string written(double number, std::chars_format format, int digits) {
    if (std::isnan(number)) return "nan";
    if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
    std::array<char, 512> text{};  // the largest number has 309 digits before its point
    const auto end = std::to_chars(text.data(), text.data() + text.size(), number, format, digits);
    return {text.data(), end.ptr};
}

}  // namespace

std::string fixed(double number, int digits) { return written(number, std::chars_format::fixed, digits); }

std::string scientific(double number, int digits) { return written(number, std::chars_format::scientific, digits); }

std::string shortest(double number) {
    if (!std::isfinite(number)) return scientific(number, 0);
    std::array<char, 64> text{};
    char* const last = text.data() + text.size();
    const auto end = std::to_chars(text.data(), last, number, std::chars_format::scientific);
    const std::string_view whole(text.data(), static_cast<std::size_t>(end.ptr - text.data()));
    const std::size_t mark = whole.find('e');
    int exponent = 0;
    const std::size_t sign = whole[mark + 1] == '+' ? 2 : 1;
    std::from_chars(whole.data() + mark + sign, whole.data() + whole.size(), exponent);
    // Python writes the digits without an exponent from 1e-4 up to below 1e16.
    if (exponent < -4 || exponent >= 16) return std::string(whole);
    const auto fixed = std::to_chars(text.data(), last, number, std::chars_format::fixed);
    std::string result(text.data(), fixed.ptr);
    return result.find('.') == std::string::npos ? result + ".0" : result;
}

std::string cut(std::string_view text, std::size_t most, std::string_view end) {
    if (letters(text) <= most) return std::string(text);
    std::size_t at = 0;
    for (std::size_t left = most - end.size(); left > 0; --left) next_letter(text, at);
    return std::string(text.substr(0, at)).append(end);
}

}  // namespace attnport::reader
