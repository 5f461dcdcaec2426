// Runs a fuzz target of the reader on files, once each, without the fuzzer: the names come on stdin, a line each.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

int main() {
    for (std::string name; std::getline(std::cin, name);) {
        std::ifstream file(name, std::ios::binary);
        if (!file) return 2;
        const std::string data{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        std::cerr << name << std::endl;  // the last one that is told is the one that ends the program
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(data.data()), data.size());
    }
    return 0;
}
