// words CHARS: for each line of stdin, text as hexadecimal digits, the words that it becomes by a `tokenizer.chars`.
#include <exception>
#include <iostream>
#include <string>

#include "../hexadecimal.hpp"
#include "format/text.hpp"
#include "text/wordpiece.hpp"

int main(int count, char** values) {
    try {
        if (count != 2) return 2;
        const attnport::reader::Chars chars(values[1]);
        for (std::string line; std::getline(std::cin, line);) {
            chars.split(hexadecimal::bytes(line), [](std::u32string_view word) {
                std::string bytes;
                for (const char32_t letter : word) attnport::reader::append_letter(bytes, letter);
                std::cout << hexadecimal::digits(bytes) << ' ';
            });
            std::cout << '\n';
        }
        return 0;
    } catch (const std::exception& err) {
        std::cerr << "error: " << err.what() << '\n';
        return 2;
    }
}
