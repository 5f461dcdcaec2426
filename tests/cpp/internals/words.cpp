// words FILE: for each line of stdin, text as hexadecimal digits, the words that its rules make of it, in the same way.
#include <exception>
#include <iostream>
#include <string>

#include "../hexadecimal.hpp"
#include "printable.hpp"
#include "wordpiece.hpp"

int main(int count, char** values) {
    try {
        if (count != 2) return 2;
        const attnport::reader::Normalizer rules = attnport::reader::read_wordpiece(values[1]).normalizer;
        for (std::string line; std::getline(std::cin, line);) {
            const std::string text = hexadecimal::bytes(line);
            attnport::reader::check_utf8(text);
            const std::u32string plain = attnport::reader::normalised(attnport::reader::from_utf8(text), rules);
            for (const std::u32string_view word : attnport::reader::words(plain)) {
                std::string bytes;
                for (const char32_t letter : word) attnport::reader::append_letter(bytes, letter);
                std::cout << hexadecimal::digits(bytes) << ' ';
            }
            std::cout << '\n';
        }
        return 0;
    } catch (const std::exception& err) {
        std::cerr << "error: " << err.what() << '\n';
        return 2;
    }
}
