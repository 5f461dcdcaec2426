// The files of a bundle: opened without following a link, compared with the manifest, hashed by OpenSSL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest.hpp"

namespace attnport::reader {

/// A regular file, open for reading; no link is followed and no pipe is waited for. Closed by its destructor.
class RegularFile {
public:
    /// Throws std::runtime_error: it cannot be opened, a link is one of the reasons, or it is no regular file.
    explicit RegularFile(const std::filesystem::path& path);
    RegularFile(const RegularFile&) = delete;
    RegularFile& operator=(const RegularFile&) = delete;
    ~RegularFile();

    [[nodiscard]] std::uint64_t size() const;
    /// Up to `bytes` bytes, 0 at the end. Throws std::system_error.
    std::size_t read(void* data, std::size_t bytes);
    /// At most `limit` bytes from here on. Throws std::system_error.
    [[nodiscard]] std::string read_up_to(std::size_t limit);

private:
    int descriptor_;
};

/// The bytes of a bundled file. Throws IntegrityError: it cannot be read, or has more than `most` bytes.
[[nodiscard]] std::string read_bundled(const std::filesystem::path& path, std::uint64_t most);
[[nodiscard]] std::string read_bundled(const std::filesystem::path& path);

/// Whether a path lies in a folder, or is it, whatever links lead there; neither need be there.
[[nodiscard]] bool is_inside(const std::filesystem::path& path, const std::filesystem::path& folder);

/// The same path; of an empty one the folder that the process is in.
[[nodiscard]] std::filesystem::path not_empty(const std::filesystem::path& path);

/// Lower-case hex digits.
[[nodiscard]] std::string hex(std::string_view bytes);

/// The 32 bytes of a text's SHA-256.
[[nodiscard]] std::string sha256(std::string_view data);

inline constexpr std::size_t max_findings = 20;

/// One thing that is wrong with a bundle's files; `name` is relative to the folder, and printable.
struct Finding {
    std::string name;
    std::string problem;
};

/// What is changed, missing, added, a link, or no regular file; at most `max_findings` things. Empty: nothing.
[[nodiscard]] std::vector<Finding> check_files(const std::filesystem::path& folder, const Manifest& manifest);

/// Throws IntegrityError for the first thing that `check_files` finds, and says how many there are.
void require_files(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace attnport::reader
