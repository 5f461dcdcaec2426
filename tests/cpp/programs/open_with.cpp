// Opens a bundle with execution providers and plug-ins that are asked for, and says what runs.
//
//     open_with APP CACHE PROVIDER,PROVIDER NAME=LIBRARY,NAME=LIBRARY
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <attnport/bundle.hpp>

namespace {

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
    return parts;
}

}  // namespace

int main(int count, char** words) {
    if (count != 5) return 64;
    attnport::Options options;
    options.threads = 1;
    options.cache = words[2];
    options.providers = split(words[3]);
    options.warn = [](const std::string& said) { std::cout << "warning: " << said << '\n'; };
    for (const auto& plugin : split(words[4])) {
        const auto equals = plugin.find('=');
        options.plugins.emplace_back(plugin.substr(0, equals), plugin.substr(equals + 1));
    }
    try {
        const attnport::Model model(words[1], options);
        std::cout << model.form() << " on " << model.provider() << '\n';
        return 0;
    } catch (const attnport::Error& err) {
        std::cout << err.what() << '\n';
        return err.exit_code();
    }
}
