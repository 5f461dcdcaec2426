#include "regular.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
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

bool is_inside(const std::filesystem::path& path, const std::filesystem::path& folder) {
    const auto resolved = [](const std::filesystem::path& given) {
        std::error_code error;
        const auto absolute = std::filesystem::absolute(given, error);
        const auto found = std::filesystem::weakly_canonical(error ? given : absolute, error);
        return error ? absolute.lexically_normal() : found;
    };
    const auto inner = resolved(path);
    const auto outer = resolved(folder);
    const auto [at, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
    return at == outer.end() || (std::next(at) == outer.end() && at->empty());  // empty: behind a last slash
}

std::filesystem::path not_empty(const std::filesystem::path& path) { return path.empty() ? "." : path; }

}  // namespace attnport::reader
