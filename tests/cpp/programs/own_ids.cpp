// own_ids APP FORM TOKENS [PROMPT]: the vector of each text, as a line of C's hexadecimal floats; by one thread. The ids are
// the application's: a line of stdin is a text as hexadecimal digits, a blank, and its ids; one that begins with `#` is a
// text that only the tokenizer is asked for, such as a prompt. TOKENS is the most ids that the tokenizer gives; 0 = what
// it is asked for.
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <attnport/bundle.hpp>

#include "../hexadecimal.hpp"
#include "ended.hpp"

namespace {

void run(const std::vector<std::string>& told) {
    std::map<std::string, std::vector<std::int64_t>> known;
    std::vector<std::string> texts;
    for (std::string line; std::getline(std::cin, line);) {
        const bool asked_alone = line[0] == '#';
        std::istringstream words(line.substr(asked_alone ? 1 : 0));
        std::string digits;
        std::getline(words, digits, ' ');
        const std::string text = hexadecimal::bytes(digits);
        std::vector<std::int64_t> ids;
        for (std::int64_t id = 0; words >> id;) ids.push_back(id);
        known[text] = ids;
        if (!asked_alone) texts.push_back(text);
    }
    attnport::Options options;
    options.form = told.at(1);
    options.threads = 1;
    const auto most = static_cast<std::size_t>(std::stoll(told.at(2)));
    attnport::MapOptions asked;
    if (told.size() > 3) asked.prompt = told.at(3);
    options.tokenize = [&](const std::string& text, std::int64_t longest) {
        const auto found = known.find(text);
        if (found == known.end()) throw attnport::FeedError("asked for another text: " + text);
        std::vector<std::int64_t> ids = found->second;
        // What stands behind a text stays, as a tokenizer has it.
        const std::size_t size = most != 0 ? most : static_cast<std::size_t>(longest);
        if (ids.size() > size) ids.erase(ids.end() - 1 - static_cast<std::ptrdiff_t>(ids.size() - size), ids.end() - 1);
        return ids;
    };
    const attnport::Model model(told.at(0), options);
    const std::string prompt = asked.prompt.value_or(model.default_prompt_name());
    const auto before = model.prompts().find(prompt);
    // Lines have what the tokenizer is to be asked for; `embed` puts the prompt there itself.
    if (before != model.prompts().end()) {
        for (std::string& text : texts) text.erase(0, before->second.size());
    }
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
