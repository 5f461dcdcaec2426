#include <algorithm>
#include <array>
#include <map>

#include "manifest.hpp"
#include "signature.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

constexpr std::size_t max_part = 255;
constexpr std::string_view python = "python/";
constexpr std::string_view reader_folder = "python/attnport_bundle/";
constexpr std::string_view no_bytecode = "python/attnport_bundle/__pycache__";

// Not std::tolower, which knows letters of the locale too.
std::string lower(std::string text) {
    for (char& letter : text) {
        if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    }
    return text;
}

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

bool is_plain(std::string_view part) {
    const bool letters = std::all_of(part.begin(), part.end(), [](char letter) {
        return letter >= 0x20 && letter < 0x7F && std::string_view("\\:*?\"<>|").find(letter) == std::string_view::npos;
    });
    return letters && !part.empty() && part != "." && part != ".." && part.back() != ' ' && part.back() != '.' &&
           part.size() <= max_part;
}

// Windows opens a device for these, in any case and with any ending: `nul.txt` is no file there.
bool is_device(std::string_view part) {
    std::string name = lower(std::string(part.substr(0, part.find('.'))));
    name.erase(name.find_last_not_of(' ') + 1);
    constexpr std::array<std::string_view, 6> devices = {"con", "prn", "aux", "nul", "conin$", "conout$"};
    if (std::find(devices.begin(), devices.end(), name) != devices.end()) return true;
    const bool is_port = starts_with(name, "com") || starts_with(name, "lpt");
    return is_port && name.size() == 4 && name[3] >= '0' && name[3] <= '9';
}

std::string problem_with(const std::string& name) {
    for (std::size_t at = 0; at <= name.size();) {
        const std::size_t end = std::min(name.find('/', at), name.size());
        const std::string_view part = std::string_view(name).substr(at, end - at);
        if (!is_plain(part)) return quoted(name) + " is not a plain path inside the folder";
        if (is_device(part)) return quoted(name) + " is not a plain path: Windows has a device of that name";
        at = end + 1;
    }
    // The folder python/ holds the reader and nothing else.
    if (!starts_with(name, reader_folder) && starts_with(lower(name), python)) {
        return quoted(name) + " is not of the reader, and " + std::string(python) + " holds nothing else";
    }
    return "";
}

}  // namespace

std::string problem_with_names(const std::map<std::string, File>& files) {
    // Files that speak of all the others, and so are not among them.
    std::map<std::string, std::string> seen;
    for (const auto reserved : {manifest_name, signature_name}) seen.emplace(reserved, reserved);
    bool has_reader = false;
    for (const auto& [name, file] : files) {
        if (std::string problem = problem_with(name); !problem.empty()) return problem;
        const auto [first, is_new] = seen.emplace(lower(name), name);
        if (!is_new) return quoted(name) + " and " + quoted(first->second) + " may be one file";
        has_reader = has_reader || starts_with(name, reader_folder);
    }
    if (!has_reader || files.count(std::string(no_bytecode)) != 0) return "";
    return quoted(no_bytecode) + " is not among the files of the reader";
}

}  // namespace attnport::reader
