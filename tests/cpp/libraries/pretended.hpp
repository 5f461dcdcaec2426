// What pretended libraries share: settings from the environment, and a file of what was called, a line each.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

namespace pretended {

inline std::string setting(const char* name, const char* otherwise = "") {
    const char* const found = std::getenv(name);
    return found != nullptr ? found : otherwise;
}

inline void note(const std::string& event) {
    const std::string path = setting("PRETENDED_LOG");
    if (path.empty()) return;
    std::FILE* const file = std::fopen(path.c_str(), "a");
    if (file == nullptr) return;
    std::fprintf(file, "%s\n", event.c_str());
    std::fclose(file);
}

/// Ends the process: what a real library would have crashed on, or worse.
[[noreturn]] inline void refuse(const std::string& why) {
    std::fprintf(stderr, "pretended: %s\n", why.c_str());
    std::fflush(stderr);
    std::_Exit(97);
}

/// Whether this call of `function` is the one that PRETENDED_FAIL names: `cuMemAlloc_v2`, or `cuMemAlloc_v2:2` for its
/// second call alone. `calls` counts.
inline bool fails(const std::string& function, int& calls) {
    ++calls;
    const std::string wanted = setting("PRETENDED_FAIL");
    return wanted == function || wanted == function + ":" + std::to_string(calls);
}

}  // namespace pretended
