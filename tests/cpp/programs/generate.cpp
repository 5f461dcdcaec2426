// generate APP FORM NAME VALUE ...: continues the prompts of stdin, one of token ids a line, by one thread; the names are
// those of GenerateOptions. Tokens are ids with commas, or `none`. `encoder APP` is what reads the prompts. Each
// new token is told as `PROMPT TOKEN` as it comes, and then each prompt's as a line.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <attnport/bundle.hpp>

#include "ended.hpp"

namespace {

std::vector<std::int64_t> ids_of(const std::string& text, char between) {
    std::vector<std::int64_t> ids;
    std::istringstream words(text);
    for (std::string word; std::getline(words, word, between);) ids.push_back(std::stoll(word));
    return ids;
}

std::vector<std::int64_t> tokens_of(const std::string& value) {
    return value == "none" ? std::vector<std::int64_t>{} : ids_of(value, ',');
}

void set(attnport::GenerateOptions& options, const std::string& name, const std::string& value) {
    if (name == "max_tokens") {
        options.max_tokens = std::stoll(value);
    } else if (name == "temperature") {
        options.temperature = std::stod(value);
    } else if (name == "top_k") {
        options.top_k = std::stoll(value);
    } else if (name == "top_p") {
        options.top_p = std::stod(value);
    } else if (name == "seed") {
        options.seed = std::stoull(value);
    } else if (name == "stop") {
        options.stop = tokens_of(value);
    } else if (name == "ignore_rules") {
        options.ignore_rules = value == "True";
    } else {
        throw std::invalid_argument(name);
    }
}

using Texts = std::vector<std::vector<std::int64_t>>;

/// What a decoder takes at every step: an encoder's outputs, and the masks of the texts that it read.
std::pair<attnport::Outputs, std::vector<attnport::Tensor>> read(const attnport::Model& encoder, const Texts& texts) {
    std::vector<std::int64_t> lengths;
    for (const auto& text : texts) lengths.push_back(static_cast<std::int64_t>(text.size()));
    const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
    std::vector<std::int64_t> ids;
    for (std::vector<std::int64_t> text : texts) {
        text.resize(longest, 0);
        ids.insert(ids.end(), text.begin(), text.end());
    }
    std::vector<attnport::Tensor> masks = encoder.masks(lengths);
    attnport::Inputs inputs(masks.begin(), masks.end());
    const auto rows = static_cast<std::int64_t>(texts.size());
    inputs.emplace_back("input_ids", ids, attnport::Shape{rows, static_cast<std::int64_t>(longest)});
    return {encoder.run(inputs), std::move(masks)};
}

void run(const std::vector<std::string>& told) {
    attnport::Options options;
    options.form = told.at(1);
    options.threads = 1;
    const attnport::Model model(told.at(0), options);
    attnport::GenerateOptions asked;
    std::string encoder;
    for (std::size_t at = 2; at + 1 < told.size(); at += 2) {
        if (told[at] == "encoder") {
            encoder = told[at + 1];
        } else {
            set(asked, told[at], told[at + 1]);
        }
    }
    asked.on_token = [](std::size_t prompt, std::int64_t token) { std::cout << prompt << ' ' << token << '\n'; };
    Texts prompts;
    for (std::string line; std::getline(std::cin, line);) prompts.push_back(ids_of(line, ' '));
    std::vector<attnport::Tensor> context;
    if (!encoder.empty()) {
        const auto [outputs, masks] = read(attnport::Model(encoder, options), prompts);
        context.assign(outputs.begin(), outputs.end());
        context.insert(context.end(), masks.begin(), masks.end());
        prompts.assign(prompts.size(), model.io().decoder->start);
    }
    asked.context.assign(context.begin(), context.end());
    for (const auto& text : model.generate(prompts, asked)) {
        for (const std::int64_t token : text) std::cout << token << ',';
        std::cout << '\n';
    }
}

}  // namespace

int main(int count, char** words) {
    return ended([&] {
        run({words + 1, words + count});
        return 0;
    });
}
