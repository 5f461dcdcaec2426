#include "session.hpp"

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <sys/utsname.h>

#include <attnport/error.hpp>

#include "words.hpp"

namespace attnport::reader {
namespace {

/// The processor's own name, where the system tells it.
std::string model_name() {
    std::ifstream info("/proc/cpuinfo");
    std::string line;
    while (std::getline(info, line)) {
        if (line.rfind("model name", 0) != 0) continue;
        const auto colon = line.find(':');
        return std::string(stripped(colon == std::string::npos ? "" : std::string_view(line).substr(colon + 1)));
    }
    return "";
}

}  // namespace

Session::~Session() = default;

std::vector<Tensor> Session::run_in_place(const std::vector<Input>& /*inputs*/,
                                          const std::vector<std::optional<std::size_t>>& /*shared*/) {
    throw Error("this runtime does not write to caches in place.");
}

std::unique_ptr<Steps> Session::new_steps(const Roles& /*roles*/) { return nullptr; }

// Another processor takes other kernels, so a pass on this one says nothing about it.
Machine this_cpu() {
    utsname system{};
    const std::string kind = uname(&system) == 0 ? static_cast<const char*>(system.machine) : "";
    Machine found;
    found.device = std::string(stripped(kind + " " + model_name()));
    return found;
}

}  // namespace attnport::reader
