// ONNX Runtime's library, loaded when the first form needs it. Only for files that are compiled with its headers.
//
// Its SONAME and versioned symbols tie a linked binary to one release, so it is not linked. Its C interface is used and
// not the C++ one on top of that: the latter keeps the loaded interface in a global that an application may use too.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <onnxruntime_c_api.h>

#include <attnport/model.hpp>

#include "manifest.hpp"

namespace attnport::reader {

/// What ONNX Runtime says when a call fails; the text is as Python's package shows it.
class OrtFailure : public std::runtime_error {
public:
    OrtFailure(OrtErrorCode code, const std::string& message);
    [[nodiscard]] OrtErrorCode code() const noexcept { return code_; }

private:
    OrtErrorCode code_;
};

/// Something of ONNX Runtime's that is given back by a function of its own.
template <class T> using OrtOwned = std::unique_ptr<T, void(ORT_API_CALL*)(T*)>;

/// A library that is loaded, and its environment: one in a process for each library, which stay until the process ends.
class OnnxRuntime {
public:
    OnnxRuntime(const OrtApi* api, std::string version, OrtEnv* env)
        : api_(api), version_(std::move(version)), env_(env) {}
    OnnxRuntime(const OnnxRuntime&) = delete;
    OnnxRuntime& operator=(const OnnxRuntime&) = delete;
    ~OnnxRuntime() = default;

    [[nodiscard]] const OrtApi& api() const noexcept { return *api_; }
    [[nodiscard]] OrtEnv* env() const noexcept { return env_; }
    [[nodiscard]] const std::string& version() const noexcept { return version_; }

    /// Throws OrtFailure for a status that is one; frees it.
    void check(OrtStatus* status) const;

    /// Calls a function whose last parameter takes what it made.
    template <class T, class Make> [[nodiscard]] OrtOwned<T> made(void(ORT_API_CALL* release)(T*), Make make) const {
        T* found = nullptr;
        check(make(&found));
        return {found, release};
    }

    /// The execution providers that it was built with.
    [[nodiscard]] std::vector<std::string> providers() const;

    /// Registers plug-in libraries of execution providers, each once. Nobody registers another while what is returned
    /// is held: GetEpDevices gives ONNX Runtime's own array, which registering changes. Throws RuntimeMissing: one
    /// cannot be loaded, or this reader was compiled with headers that know none.
    [[nodiscard]] std::unique_lock<std::mutex> register_plugins(
        const std::vector<std::pair<std::string, std::filesystem::path>>& plugins);

private:
    const OrtApi* api_;
    std::string version_;
    OrtEnv* env_;
    std::mutex lock_;
    std::vector<std::pair<std::string, std::filesystem::path>> plugins_;
};

/// The library in `asked`, else in $ATTNPORT_ONNXRUNTIME, else the loader's. Throws RuntimeMissing: there is none, it
/// is not the release that a form needs, or it is older than the headers that this reader was compiled with.
[[nodiscard]] OnnxRuntime& load_onnxruntime(const std::filesystem::path& asked, const Requires& wanted);

}  // namespace attnport::reader
