#if defined(ATTNPORT_WITH_ONNXRUNTIME)

#include "onnxruntime_library.hpp"

#include <array>
#include <cstdlib>
#include <map>

#include <dlfcn.h>

#include <attnport/error.hpp>

#include "opening.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

#if defined(__APPLE__)
constexpr const char* default_library = "libonnxruntime.dylib";
#else
constexpr const char* default_library = "libonnxruntime.so.1";
#endif
constexpr const char* variable = "ATTNPORT_ONNXRUNTIME";

/// Every library that this process has loaded, by the address of its entry.
struct Libraries {
    std::mutex lock;
    std::map<const OrtApiBase*, std::unique_ptr<OnnxRuntime>> loaded;
};

/// ONNX Runtime has one environment in a process, so what is loaded belongs to the process as well. It is never
/// destroyed: at the end of a process the library's own globals may go first, and models of an application later.
Libraries& libraries() {
    static Libraries* const found = std::make_unique<Libraries>().release();
    return *found;
}

std::string library_name(const std::filesystem::path& asked) {
    if (!asked.empty()) return asked.string();
    const char* named = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): read, and never set, by this library
    return named != nullptr && *named != '\0' ? named : default_library;
}

/// What to do about a library that will not do; `later` is the least release that does.
std::string how_to_set(const std::string& later) {
    return std::string("set ") + variable + " (or Options::onnxruntime) to the library of onnxruntime " + later +
           ", such as libonnxruntime.so of its package";
}

std::string wanted_release(const Requires& wanted) {
    return wanted.exact ? wanted.runtime : wanted.runtime + " or later";
}

const OrtApiBase* entry_of(const std::string& library, const Requires& wanted) {
    // Never closed: ONNX Runtime's threads and globals do not survive that.
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* reason = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread, on Linux and macOS
        throw RuntimeMissing(std::string("onnxruntime cannot be loaded: ") +
                             (reason != nullptr ? reason : library.c_str()) + "; " +
                             how_to_set(wanted_release(wanted)) + ".");
    }
    using Entry = const OrtApiBase*(ORT_API_CALL*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(handle, "OrtGetApiBase"));
    const OrtApiBase* base = entry == nullptr ? nullptr : entry();
    if (base == nullptr) {
        throw RuntimeMissing(library + " is not a library of onnxruntime: it has no OrtGetApiBase; " +
                             how_to_set(wanted_release(wanted)) + ".");
    }
    return base;
}

/// The C interface of the headers that this file is compiled with. Release 1.N has N of them, and asking an older one
/// prints to stderr, so its number is looked at first.
const OrtApi* interface_of(const OrtApiBase* base, const std::string& version) {
    const auto numbers = release(version);
    const bool known = numbers.size() >= 2 && numbers[0] == 1;
    const OrtApi* api = known && numbers[1] < ORT_API_VERSION ? nullptr : base->GetApi(ORT_API_VERSION);
    if (api != nullptr) return api;
    const std::string later = "1." + std::to_string(ORT_API_VERSION);
    throw RuntimeMissing("got onnxruntime " + version + "; this reader was compiled with headers of API " +
                         std::to_string(ORT_API_VERSION) + ", so it needs " + later + " or later; " +
                         how_to_set(later + " or later") + ".");
}

OrtEnv* environment(const OrtApi* api) {
    OrtEnv* env = nullptr;
    // Errors are raised; they need not be printed as well.
    OrtStatus* status = api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "attnport_bundle", &env);
    if (status == nullptr) return env;
    const std::string message = api->GetErrorMessage(status);
    api->ReleaseStatus(status);
    throw RuntimeMissing("onnxruntime does not start: " + escaped(message));
}

/// The names of OrtErrorCode, as ONNX Runtime's own text has them.
const char* name_of(OrtErrorCode code) {
    static constexpr std::array names{"SUCCESS",         "FAIL",         "INVALID_ARGUMENT",  "NO_SUCHFILE",
                                      "NO_MODEL",        "ENGINE_ERROR", "RUNTIME_EXCEPTION", "INVALID_PROTOBUF",
                                      "MODEL_LOADED",    "NOT_IMPLEMENTED", "INVALID_GRAPH",  "EP_FAIL"};
    const auto index = static_cast<std::size_t>(code);
    return index < names.size() ? names.at(index) : "GENERAL ERROR";
}

}  // namespace

OrtFailure::OrtFailure(OrtErrorCode code, const std::string& message)
    : std::runtime_error("[ONNXRuntimeError] : " + std::to_string(code) + " : " + name_of(code) + " : " + escaped(message)),
      code_(code) {}

void OnnxRuntime::check(OrtStatus* status) const {
    if (status == nullptr) return;
    const OrtOwned<OrtStatus> owned(status, api_->ReleaseStatus);
    throw OrtFailure(api_->GetErrorCode(status), api_->GetErrorMessage(status));
}

std::vector<std::string> OnnxRuntime::providers() const {
    char** names = nullptr;
    int count = 0;
    check(api_->GetAvailableProviders(&names, &count));
    std::vector<std::string> found(names, names + count);
    check(api_->ReleaseAvailableProviders(names, count));
    return found;
}

std::unique_lock<std::mutex> OnnxRuntime::register_plugins(
    const std::vector<std::pair<std::string, std::filesystem::path>>& plugins) {
    std::unique_lock<std::mutex> held(lock_);
#if ORT_API_VERSION >= 23
    for (const auto& plugin : plugins) {
        bool known = false;
        for (const auto& [name, path] : plugins_) {
            if (name != plugin.first) continue;
            if (path != plugin.second) {
                throw Error("plug-in '" + name + "' is registered already, with " + path.string() + ".");
            }
            known = true;
        }
        if (known) continue;
        try {
            check(api_->RegisterExecutionProviderLibrary(env_, plugin.first.c_str(), plugin.second.c_str()));
        } catch (const OrtFailure& err) {
            throw RuntimeMissing("plug-in '" + plugin.first + "' cannot be loaded: " + err.what());
        }
        plugins_.push_back(plugin);
    }
    return held;
#else
    if (plugins.empty()) return held;
    throw RuntimeMissing("plug-in '" + plugins.front().first +
                         "': plug-in providers need a reader that is compiled with ONNX Runtime's headers of API 23 or "
                         "later; this one was compiled with API " + std::to_string(ORT_API_VERSION) +
                         "; set ONNXRUNTIME_INCLUDE_DIR in CMake.");
#endif
}

OnnxRuntime& load_onnxruntime(const std::filesystem::path& asked, const Requires& wanted) {
    const OrtApiBase* base = entry_of(library_name(asked), wanted);
    const std::string version = base->GetVersionString();
    require_release("onnxruntime", version, wanted, how_to_set(wanted_release(wanted)));
    Libraries& known = libraries();
    const std::lock_guard<std::mutex> held(known.lock);
    auto& slot = known.loaded[base];
    if (slot == nullptr) {
        const OrtApi* api = interface_of(base, version);
        slot = std::make_unique<OnnxRuntime>(api, version, environment(api));
    }
    return *slot;
}

}  // namespace attnport::reader

#endif
