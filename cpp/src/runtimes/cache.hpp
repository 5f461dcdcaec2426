// The folder where a machine keeps what TensorRT-RTX compiled. Nothing in it is needed, and nothing is believed that
// does not say itself what it belongs to. It lies outside every bundle.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "format/manifest.hpp"
#include "runtimes/session.hpp"

namespace attnport::reader {

using Warn = std::function<void(const std::string&)>;

/// Files by name in a folder that is this user's alone.
class CacheFolder {
public:
    explicit CacheFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

    /// The bytes of a file; none when there is none that can be read, or it is larger than 1 GiB.
    [[nodiscard]] std::optional<std::string> read(const std::string& name) const;
    /// Puts a file in its place, whole or not at all, and says whether it could.
    [[nodiscard]] bool write(const std::string& name, std::string_view data) const;

private:
    std::filesystem::path folder_;
};

/// The cache of this user, made where it is not there yet; none, and a warning, where that cannot be, or others may
/// write to it. `asked` empty = $ATTNPORT_CACHE, else `attnport` in the user's folder for caches. Throws Error: inside
/// the bundle.
[[nodiscard]] std::optional<CacheFolder> find_cache(const std::filesystem::path& bundle,
                                                    const std::filesystem::path& asked, const Warn& warn);

/// The name of what was compiled for one form, on one release of its runtime, on one device with one driver. The
/// manifest has the digest of every file, so another model is another entry. Python's reader has other names.
[[nodiscard]] std::string entry(const Manifest& manifest, const std::string& form, const std::string& provider,
                                const std::string& version, const Machine& machine);

/// What TensorRT-RTX compiled for a device, kept for the next time: magic, SHA-256 of the rest, entry, blob.
class RuntimeCache {
public:
    RuntimeCache(CacheFolder cache, std::string entry) : cache_(std::move(cache)), entry_(std::move(entry)) {}

    /// The blob; none where there is none, or the file is damaged or another entry's.
    [[nodiscard]] std::optional<std::string> read();
    /// Keeps a blob that is another one than the last; where that is not possible it is compiled again next time.
    void write(std::string_view blob);

private:
    CacheFolder cache_;
    std::string entry_;
    std::optional<std::string> last_;
};

}  // namespace attnport::reader
