#include "runtimes/session.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <fstream>

#include <attnport/error.hpp>

#include "format/text.hpp"

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

std::unique_ptr<Steps> Session::new_steps(const DecoderFacts& /*facts*/) { return nullptr; }

Machine this_cpu() {
    utsname system{};
    const std::string kind = uname(&system) == 0 ? static_cast<const char*>(system.machine) : "";
    Machine found;
    found.device = std::string(stripped(kind + " " + model_name()));
    return found;
}

bool may_map(const Manifest& manifest, const Form& form) {
    constexpr std::int64_t read_bytes_at_most = std::int64_t{1} << 28U;
    std::int64_t bytes = 0;
    for (const std::string& name : form.external) {
        bytes += std::min(manifest.files.at(name).bytes, read_bytes_at_most + 1);
    }
    return bytes > read_bytes_at_most;
}

std::vector<std::int64_t> release(std::string_view version) {
    constexpr std::size_t parts = 3;
    constexpr std::size_t digits = 15;  // a longer number, which nobody releases, would not fit
    std::vector<std::int64_t> found;
    std::size_t at = 0;
    version = version.substr(0, version.find_first_of("+-"));
    const auto is_digit = [&](std::size_t index) { return version[index] >= '0' && version[index] <= '9'; };
    while (at < version.size() && found.size() < parts) {
        if (!is_digit(at)) {
            ++at;
            continue;
        }
        std::int64_t number = 0;
        for (std::size_t taken = 0; at < version.size() && is_digit(at); ++at, ++taken) {
            if (taken < digits) number = 10 * number + (version[at] - '0');
        }
        found.push_back(number);
    }
    return found;
}

void require_release(std::string_view runtime, std::string_view version, const Requires& wanted, std::string_view how) {
    const bool fits = wanted.exact ? version == wanted.runtime : release(version) >= release(wanted.runtime);
    if (fits) return;
    throw RuntimeMissing("got " + std::string(runtime) + " " + std::string(version) + "; expected " + wanted.runtime +
                         (wanted.exact ? ", that release exactly" : " or later") + "; " + std::string(how) + ".");
}

}  // namespace attnport::reader
