// rank_texts APP TOKENS: the scores of the pairs on stdin, a line each of two texts as hexadecimal digits with a
// space between them, or of single texts; then the places of the second texts by `rank` for the first text of all.
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
    options.threads = 1;
    attnport::MapOptions asked;
    asked.tokens = std::stoll(told.at(1));
    std::vector<std::string> texts;
    std::vector<std::string> others;
    for (std::string line; std::getline(std::cin, line);) {
        const std::size_t space = line.find(' ');
        texts.push_back(hexadecimal::bytes(line.substr(0, space)));
        if (space != std::string::npos) others.push_back(hexadecimal::bytes(line.substr(space + 1)));
    }
    const attnport::Model model(told.at(0), options);
    const attnport::Tensor scores = others.empty() ? model.predict(texts, asked) : model.predict(texts, others, asked);
    std::cout << std::hexfloat;
    for (const auto size : scores.shape()) std::cout << size << ' ';
    std::cout << '\n';
    for (std::size_t at = 0; at < scores.size(); ++at) std::cout << static_cast<double>(scores.data<float>()[at]) << '\n';
    if (others.empty()) return;
    for (const attnport::Ranked& one : model.rank(texts.at(0), others, asked)) {
        std::cout << one.index << ' ' << static_cast<double>(one.score) << '\n';
    }
}

}  // namespace

int main(int count, char** words) {
    return ended([&] {
        run({words + 1, words + count});
        return 0;
    });
}
