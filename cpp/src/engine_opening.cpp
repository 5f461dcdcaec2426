// An engine opened by the TensorRT that this file was compiled with the headers of: see EngineLibrary::require.
#include "opening.hpp"

#include <attnport/error.hpp>

#ifndef ATTNPORT_WITH_TENSORRT

namespace attnport::reader {

std::unique_ptr<Session> open_engine(const std::filesystem::path& /*path*/, const Manifest& manifest,
                                     const std::string& name, const std::optional<Cache>& /*cache*/) {
    throw RuntimeMissing(manifest.form(name).runtime +
                         ": this library was built without TensorRT's headers; name their folders to CMake in "
                         "TENSORRT_INCLUDE_DIR and CUDA_INCLUDE_DIR.");
}

}  // namespace attnport::reader

#else

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine_session.hpp"
#include "sha256.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

#ifdef TRT_MAJOR_RTX
constexpr Headers compiled_with{"tensorrt_rtx", TRT_MAJOR_RTX, TRT_MINOR_RTX};
#else
constexpr Headers compiled_with{"tensorrt", NV_TENSORRT_MAJOR, NV_TENSORRT_MINOR};
#endif

/// The bytes of an engine, which is code for a device: the bundled ones, whatever was compared before. These very bytes
/// are what TensorRT gets; the file is not read again.
std::string bundled(const std::filesystem::path& path, const Manifest& manifest, const Form& form) {
    std::string data = read_regular(path);
    if (sha256_hex(data) != manifest.files.at(form.file).sha256) {
        throw IntegrityError(path.string() + ": changed: its SHA-256 is not that of the manifest.");
    }
    return data;
}

}  // namespace

std::unique_ptr<Session> open_engine(const std::filesystem::path& path, const Manifest& manifest,
                                     const std::string& name, const std::optional<Cache>& cache) {
    const Form& form = manifest.form(name);
    if (form.runtime != compiled_with.runtime) {
        throw RuntimeMissing(form.runtime + ": this library was built with the headers of " +
                             std::string(compiled_with.runtime) +
                             "; build one with its own: CMake's TENSORRT_INCLUDE_DIR.");
    }
    const EngineLibrary library(form.runtime, form.requires_);
    library.require(compiled_with);
    const auto device = std::make_shared<cuda::Device>();
    const std::vector<std::int64_t>& built_for = form.requires_.sm;
    if (!built_for.empty() && std::find(built_for.begin(), built_for.end(), device->sm()) == built_for.end()) {
        throw RuntimeMissing("the engine was built for SM " + listed(built_for) + "; " + device->name() + " is SM " +
                             std::to_string(device->sm()) + ".");
    }
    std::optional<RuntimeCache> kept;
    if (cache && form.runtime == "tensorrt_rtx") {
        const std::string provider = library.runtime() + " " + library.version();
        kept.emplace(*cache, entry(manifest, name, provider, library.version(), cuda::machine(*device)));
    }
    device->open();
    auto session = std::make_unique<EngineSession>(device, library, bundled(path, manifest, form), path.string(),
                                                   names_of(manifest.io.outputs), std::move(kept));
    check_profiles(manifest.io, form, *session, path.string());
    return session;
}

}  // namespace attnport::reader

#endif
