// TensorRT's library, of either flavour, loaded with dlopen: no link, so the program starts where there is none. Both
// flavours export the same C functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "manifest.hpp"

namespace attnport::reader {

/// The release of TensorRT's headers that a caller was compiled with, and of which flavour they are.
struct Headers {
    std::string_view runtime;  ///< tensorrt or tensorrt_rtx
    int major = 0;
    int minor = 0;
};

class EngineLibrary {
public:
    /// Loads the library of `runtime` and asks for its release; nothing else of it is called here. A path in
    /// $ATTNPORT_TENSORRT or $ATTNPORT_TENSORRT_RTX goes first. Throws RuntimeMissing: it is not there, or is not of
    /// the release that the form requires.
    EngineLibrary(const std::string& runtime, const Requires& required);

    /// Throws RuntimeMissing unless the classes that the headers declare are those of this library.
    void require(const Headers& headers) const;

    /// `createInferRuntime_INTERNAL`: an IRuntime; null where TensorRT makes none. Not before the driver has said that
    /// there is a device: without one, some of TensorRT's libraries return what cannot be used.
    [[nodiscard]] void* create_runtime(void* logger, std::int32_t headers_version) const;

    [[nodiscard]] const std::string& runtime() const noexcept { return runtime_; }
    [[nodiscard]] const std::string& version() const noexcept { return version_; }  ///< such as `1.7.1.116`

private:
    std::string runtime_;
    std::string version_;
    int major_ = 0;
    int minor_ = 0;
    void* (*create_)(void*, std::int32_t) = nullptr;
};

}  // namespace attnport::reader
