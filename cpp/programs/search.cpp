// Semantic search: the lines of a file that are nearest in meaning to a question, by the vectors of a bundle.
//
//     attnport-search APP SENTENCES.txt "question"
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <iostream>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <attnport/bundle.hpp>

int main(int count, char** arguments) {
    if (count != 4) {
        std::cerr << "usage: attnport-search APP SENTENCES.txt \"question\"\n";
        return 2;
    }
    try {
        std::ifstream file(arguments[2]);
        std::vector<std::string> texts{arguments[3]};
        for (std::string line; std::getline(file, line);) texts.push_back(line);
        if (texts.size() == 1) throw attnport::Error(std::string(arguments[2]) + " has no line that can be read.");
        const attnport::Model model(arguments[1]);
        const attnport::Tensor vectors = model.embed(texts);
        const auto width = static_cast<std::size_t>(vectors.shape()[1]);
        const auto product = [&](std::size_t one, std::size_t other) {
            const float* const from = vectors.data<float>() + one * width;
            return std::inner_product(from, from + width, vectors.data<float>() + other * width, 0.0F);
        };
        std::vector<std::pair<float, std::size_t>> scores;
        for (std::size_t at = 1; at < texts.size(); ++at) {
            scores.emplace_back(product(0, at) / std::sqrt(product(0, 0) * product(at, at)), at);
        }
        std::stable_sort(scores.begin(), scores.end(), [](auto& one, auto& other) { return one.first > other.first; });
        scores.resize(std::min<std::size_t>(3, scores.size()));
        for (const auto& [score, at] : scores) std::cout << score << "  " << texts[at] << '\n';
        return 0;
    } catch (const attnport::Error& err) {
        std::cerr << "error: " << err.what() << '\n';
        return err.exit_code();
    }
}
