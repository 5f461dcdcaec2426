#include "session.hpp"

#include <fstream>
#include <string>
#include <string_view>

#include <sys/utsname.h>


namespace attnport::reader {
namespace {

constexpr std::string_view blanks = " \t\r\n\v\f";

std::string stripped(std::string_view text) {
    const auto first = text.find_first_not_of(blanks);
    if (first == std::string_view::npos) return "";
    return std::string(text.substr(first, text.find_last_not_of(blanks) - first + 1));
}

/// The processor's own name, where the system tells it.
std::string model_name() {
    std::ifstream info("/proc/cpuinfo");
    std::string line;
    while (std::getline(info, line)) {
        if (line.rfind("model name", 0) != 0) continue;
        const auto colon = line.find(':');
        return colon == std::string::npos ? "" : stripped(std::string_view(line).substr(colon + 1));
    }
    return "";
}

}  // namespace

Session::~Session() = default;

// Another processor takes other kernels, so a pass on this one says nothing about it.
Machine this_cpu() {
    utsname system{};
    const std::string kind = uname(&system) == 0 ? static_cast<const char*>(system.machine) : "";
    Machine found;
    found.device = stripped(kind + " " + model_name());
    return found;
}

}  // namespace attnport::reader
