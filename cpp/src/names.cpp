#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>

#include "manifest.hpp"
#include "printable.hpp"
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

void check_parts(const std::string& name) {
    for (std::size_t at = 0; at <= name.size();) {
        const std::size_t end = std::min(name.find('/', at), name.size());
        const std::string_view part = std::string_view(name).substr(at, end - at);
        if (!is_plain(part)) throw std::invalid_argument(quoted(name) + " is not a plain path inside the folder");
        if (is_device(part)) {
            throw std::invalid_argument(quoted(name) + " is not a plain path: Windows has a device of that name");
        }
        at = end + 1;
    }
}

}  // namespace

std::string shown(const std::string& name) { return is_printable(name) ? name : quoted(code_points(name), true); }

void check_names(const std::vector<std::string>& names) {
    // Files that speak of all the others, and so are not among them.
    std::map<std::string, std::string> seen;
    for (const auto reserved : {manifest_name, signature_name}) seen.emplace(reserved, reserved);
    for (const auto& name : names) {
        check_parts(name);
        const auto [first, is_new] = seen.emplace(lower(name), name);
        if (!is_new) throw std::invalid_argument(quoted(name) + " and " + quoted(first->second) + " may be one file");
    }
}

void check_reader(const std::vector<std::string>& names) {
    bool has_reader = false;
    for (const auto& name : names) {
        const bool is_reader = starts_with(name, reader_folder);
        has_reader = has_reader || is_reader;
        if (!is_reader && starts_with(lower(name), python)) {
            throw std::invalid_argument(quoted(name) + " is not of the reader, and " + std::string(python) +
                                        " holds nothing else");
        }
    }
    if (has_reader && std::find(names.begin(), names.end(), no_bytecode) == names.end()) {
        throw std::invalid_argument(quoted(no_bytecode) + " is not among the files of the reader");
    }
}

}  // namespace attnport::reader
