// Bytes as hexadecimal digits: how any text at all passes through a pipe line by line.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hexadecimal {

inline constexpr std::string_view all_digits = "0123456789abcdef";

inline std::string digits(std::string_view bytes) {
    std::string found;
    for (const char byte : bytes) {
        const auto number = static_cast<unsigned char>(byte);
        found += all_digits[number >> 4U];
        found += all_digits[number & 0xFU];
    }
    return found;
}

inline std::string bytes(std::string_view digits) {
    std::string found;
    for (std::size_t at = 0; at + 1 < digits.size(); at += 2) {
        found += static_cast<char>(all_digits.find(digits[at]) * 16 + all_digits.find(digits[at + 1]));
    }
    return found;
}

}  // namespace hexadecimal
