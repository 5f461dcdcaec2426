#include "engine_library.hpp"

#include <cstdlib>
#include <vector>

#include <dlfcn.h>

#include <attnport/error.hpp>

#include "opening.hpp"

namespace attnport::reader {

namespace {

std::string variable_of(const std::string& runtime) {
    return runtime == "tensorrt_rtx" ? "ATTNPORT_TENSORRT_RTX" : "ATTNPORT_TENSORRT";
}

/// The loader's name of a library: NVIDIA puts the major release into it. The lean and dispatch runtimes are not asked
/// for: they take version-compatible engines alone.
std::string file_name(const std::string& runtime, const std::string& required) {
    const std::vector<std::int64_t> numbers = release(required);
    const std::string suffix = numbers.empty() ? "" : "." + std::to_string(numbers.front());
    return (runtime == "tensorrt_rtx" ? "libtensorrt_rtx.so" : "libnvinfer.so") + suffix;
}

/// A name for messages, such as `TensorRT-RTX 1.7`.
std::string words(std::string_view runtime, int major, int minor) {
    return (runtime == "tensorrt_rtx" ? "TensorRT-RTX " : "TensorRT ") + std::to_string(major) + "." +
           std::to_string(minor);
}

/// Releases in which the classes that a session calls lie alike in memory have one number.
///
/// TensorRT's own promise is a major release. TensorRT-RTX promises nothing, and took functions away from 1.4 to 1.5.
/// Compared: the headers of 1.3 to 1.6, and those of 1.6 with the library 1.7.1; see engine_session.cpp.
int layout(std::string_view runtime, int major, int minor) {
    if (runtime != "tensorrt_rtx" || major != 1) return runtime != "tensorrt_rtx" ? 0 : minor;
    if (minor >= 3 && minor <= 4) return 3;
    if (minor >= 5 && minor <= 7) return 5;
    return minor;
}

}  // namespace

EngineLibrary::EngineLibrary(const std::string& runtime, const Requires& required) : runtime_(runtime) {
    const std::string variable = variable_of(runtime);
    const char* const named = std::getenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe): nothing here sets one
    const std::string path = named != nullptr && *named != '\0' ? named : file_name(runtime, required.runtime);
    // It stays loaded: TensorRT has threads and handlers of its own.
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const problem = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps one a thread
        throw RuntimeMissing(runtime + " cannot be loaded: " + (problem != nullptr ? problem : path.c_str()) +
                             "; put the library's path into " + variable + ".");
    }
    std::vector<int> parts;
    for (const char* part : {"Major", "Minor", "Patch", "Build"}) {
        std::string name = "getInferLib";
        name.append(part).append("Version");
        // POSIX: dlsym gives functions so.
        const auto ask = reinterpret_cast<std::int32_t (*)()>(dlsym(library, name.c_str()));
        if (ask == nullptr) throw RuntimeMissing(path + " is no library of " + runtime + ": it has no " + name + ".");
        parts.push_back(ask());
        if (!version_.empty()) version_ += '.';
        version_ += std::to_string(parts.back());
    }
    major_ = parts[0];
    minor_ = parts[1];
    require_release(runtime, version_, required, "put that library's path into " + variable);
    create_ = reinterpret_cast<void* (*)(void*, std::int32_t)>(dlsym(library, "createInferRuntime_INTERNAL"));
    if (create_ == nullptr) {
        throw RuntimeMissing(path + " is no library of " + runtime + ": it has no createInferRuntime_INTERNAL.");
    }
}

void EngineLibrary::require(const Headers& headers) const {
    if (headers.runtime == runtime_ && headers.major == major_ &&
        layout(runtime_, headers.major, headers.minor) == layout(runtime_, major_, minor_) &&
        (runtime_ == "tensorrt_rtx" || headers.minor <= minor_)) {
        return;
    }
    throw RuntimeMissing("compiled with headers of " + words(headers.runtime, headers.major, headers.minor) +
                         "; this is " + words(runtime_, major_, minor_) +
                         ". Build with its own headers: CMake's TENSORRT_INCLUDE_DIR.");
}

void* EngineLibrary::create_runtime(void* logger, std::int32_t headers_version) const {
    return create_(logger, headers_version);
}

}  // namespace attnport::reader
