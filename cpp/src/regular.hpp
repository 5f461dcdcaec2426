// Opening a regular file and nothing else: no link is followed, no pipe waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace attnport::reader {

/// A system call failed; what() is the system's own word for it, such as `No such file or directory`.
class SystemError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// A regular file, open for reading; closed by its destructor.
class RegularFile {
public:
    /// Throws SystemError: it cannot be opened, a link is one of the reasons; std::invalid_argument: no regular file.
    explicit RegularFile(const std::filesystem::path& path);
    RegularFile(const RegularFile&) = delete;
    RegularFile& operator=(const RegularFile&) = delete;
    ~RegularFile();

    [[nodiscard]] std::uint64_t size() const;
    /// Up to `bytes` bytes, 0 at the end. Throws SystemError.
    std::size_t read(void* data, std::size_t bytes);
    /// At most `limit` bytes from here on. Throws SystemError.
    [[nodiscard]] std::string read_up_to(std::size_t limit);
    [[nodiscard]] int descriptor() const noexcept { return descriptor_; }

private:
    int descriptor_;
};

/// Whether a path lies in a folder, or is it, whatever links lead there; neither need be there.
[[nodiscard]] bool is_inside(const std::filesystem::path& path, const std::filesystem::path& folder);

/// The same path; of an empty one the folder that the process is in.
[[nodiscard]] std::filesystem::path not_empty(const std::filesystem::path& path);

}  // namespace attnport::reader
