// embed_texts APP FORM TOKENS: the vector of each line of stdin, text as hexadecimal digits, as a line of C's hexadecimal
// floats; by one thread.
#include <ios>
#include <iostream>
#include <string>
#include <vector>

#include <attnport/bundle.hpp>

#include "../hexadecimal.hpp"
#include "ended.hpp"

namespace {

void run(const std::vector<std::string>& told) {
    attnport::Options options;
    options.form = told.at(1);
    options.threads = 1;
    attnport::MapOptions asked;
    asked.tokens = std::stoll(told.at(2));
    std::vector<std::string> texts;
    for (std::string line; std::getline(std::cin, line);) texts.push_back(hexadecimal::bytes(line));
    const attnport::Model model(told.at(0), options);
    const attnport::Tensor vectors = model.embed(texts, asked);
    const auto width = static_cast<std::size_t>(vectors.shape().at(1));
    std::cout << std::hexfloat;
    for (std::size_t at = 0; at < vectors.size(); ++at) {
        std::cout << static_cast<double>(vectors.data<float>()[at]) << ((at + 1) % width == 0 ? '\n' : ' ');
    }
}

}  // namespace

int main(int count, char** words) {
    return ended([&] {
        run({words + 1, words + count});
        return 0;
    });
}
