// What opens a TensorRT engine, of either flavour: its header, its library, and the choice of a profile. The library is
// loaded with dlopen: no link, so the program starts where there is none. Both flavours export the same C functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest.hpp"
#include "runtimes/session.hpp"

namespace attnport::reader {

/// What the header of a serialized TensorRT-RTX engine says.
struct EngineHeader {
    std::string version;           ///< of the TensorRT-RTX that built it, such as `1.7.1.116`
    std::uint64_t size_bytes = 0;  ///< of the whole file; equal to what is on disk
    std::vector<std::int64_t> sm;  ///< the compute capabilities it runs on (`86` is 8.6)
    bool later = false;            ///< whether it is also for devices that came after its builder
};

/// Reads and checks the header of a TensorRT-RTX engine. It finds a file that is no engine and one that was cut short;
/// a changed byte behind the header it does not find. Throws IntegrityError: it cannot be read, has another magic, is
/// cut short, or has bytes behind its end.
[[nodiscard]] EngineHeader read_header(const std::filesystem::path& path);

/// Throws IntegrityError for an engine whose own header contradicts the manifest. Nothing is known of the header of
/// TensorRT's own engines.
void check_engine_file(const std::filesystem::path& path, const Form& form);

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

/// The profile that admits every shape; of several the one that ends soonest, as it was tuned closest. `shapes` and the
/// ranges of each profile stand in the order of `inputs`. Throws FeedError: none does; names an input, its shape and
/// the ranges.
[[nodiscard]] std::size_t choose_profile(const std::vector<std::vector<Range>>& profiles,
                                         const std::vector<Port>& inputs, const std::vector<Shape>& shapes);

}  // namespace attnport::reader
