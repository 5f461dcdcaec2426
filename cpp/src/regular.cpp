#include "regular.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace attnport::reader {

namespace {

[[noreturn]] void fail(int error) { throw SystemError(std::generic_category().message(error)); }

// Closes a descriptor unless the object that it is for took it over.
class Opened {
public:
    explicit Opened(int descriptor) noexcept : descriptor_(descriptor) {}
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    ~Opened() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    [[nodiscard]] int get() const noexcept { return descriptor_; }
    [[nodiscard]] int release() noexcept { return std::exchange(descriptor_, -1); }

private:
    int descriptor_;
};

int open_regular(const std::filesystem::path& path) {
    // Neither a link nor a pipe's other end is waited for; by descriptor, so that what is looked at is what is read.
    Opened file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file.get() < 0) fail(errno);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail(errno);
    if (S_ISDIR(status.st_mode)) fail(EISDIR);
    if (!S_ISREG(status.st_mode)) throw std::invalid_argument("not a regular file");
    return file.release();
}

}  // namespace

RegularFile::RegularFile(const std::filesystem::path& path) : descriptor_(open_regular(path)) {}

RegularFile::~RegularFile() { ::close(descriptor_); }

std::uint64_t RegularFile::size() const {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail(errno);
    return static_cast<std::uint64_t>(status.st_size);
}

std::size_t RegularFile::read(void* data, std::size_t bytes) {
    for (;;) {
        const ssize_t got = ::read(descriptor_, data, bytes);
        if (got >= 0) return static_cast<std::size_t>(got);
        if (errno != EINTR) fail(errno);
    }
}

std::string RegularFile::read_up_to(std::size_t limit) {
    constexpr std::size_t chunk = std::size_t{1} << 16U;
    std::string text;
    while (text.size() < limit) {
        const std::size_t have = text.size();
        text.resize(have + std::min(chunk, limit - have));
        const std::size_t got = read(text.data() + have, text.size() - have);
        text.resize(have + got);
        if (got == 0) break;
    }
    return text;
}

std::string plain(const std::filesystem::path& path) {
    const std::string& text = path.native();
    // POSIX leaves exactly two slashes in front to the system, so they stay.
    const std::size_t slashes = std::min(text.find_first_not_of('/'), text.size());
    const std::size_t root = slashes > 2 ? 1 : slashes;
    std::string result(root, '/');
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find('/', at), text.size());
        const std::string part = text.substr(at, end - at);
        if (!part.empty() && part != ".") result += (result.size() > root ? "/" : "") + part;
        at = end + 1;
    }
    return result.empty() ? "." : result;
}

std::filesystem::path not_empty(const std::filesystem::path& path) { return path.empty() ? "." : path; }

}  // namespace attnport::reader
