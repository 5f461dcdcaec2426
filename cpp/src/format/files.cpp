#include "format/files.hpp"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <attnport/error.hpp>

#include "format/signature.hpp"
#include "format/text.hpp"

namespace attnport::reader {
namespace {

namespace fs = std::filesystem;
using std::to_string;

[[noreturn]] void fail(int error) { throw std::system_error(error, std::generic_category()); }

class Sha256 {
public:
    Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
        require(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
    }
    void update(const void* data, std::size_t bytes) { require(EVP_DigestUpdate(context_.get(), data, bytes) == 1); }
    [[nodiscard]] std::string digest() {
        std::string found(32, '\0');
        // Any memory may be written to as bytes.
        require(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(found.data()), nullptr) == 1);
        return found;
    }

private:
    static void require(bool done) {
        if (!done) throw std::logic_error("OpenSSL cannot compute SHA-256");
    }
    std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

// What differs between a file and its record; "" = nothing.
std::string compare(const fs::path& path, const File& expected) {
    try {
        RegularFile file(path);
        const std::uint64_t got = file.size();
        if (got != static_cast<std::uint64_t>(expected.bytes)) {
            return "changed: got " + to_string(got) + " bytes; expected " + to_string(expected.bytes);
        }
        Sha256 sha;
        std::string chunk(std::size_t{1} << 20U, '\0');
        while (const std::size_t bytes = file.read(chunk.data(), chunk.size())) sha.update(chunk.data(), bytes);
        return hex(sha.digest()) == expected.sha256 ? "" : "changed: its SHA-256 is not that of the manifest";
    } catch (const std::runtime_error& error) {
        return std::string("cannot be read: ") + error.what();
    }
}

class Check {
public:
    Check(const fs::path& folder, const Manifest& manifest) : folder_(folder), manifest_(manifest) {
        for (const auto& [name, file] : manifest.files) {
            for (auto at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
                folders_.insert(name.substr(0, at));
            }
        }
    }

    std::vector<Finding> findings() {
        walk("");
        for (const auto& [name, expected] : manifest_.files) {
            if (full()) break;
            const bool seen = seen_.count(name) != 0;
            if (!seen || seen_.at(name)) add(name, seen ? compare(folder_ / name, expected) : "missing");
        }
        return std::move(found_);
    }

private:
    [[nodiscard]] bool full() const { return found_.size() >= max_findings; }

    void add(const std::string& name, std::string problem) {
        if (!problem.empty() && !full()) found_.push_back({name, std::move(problem)});
    }

    void walk(const std::string& inside) {
        std::vector<fs::directory_entry> entries;
        std::error_code error;
        for (fs::directory_iterator at(folder_ / inside, error), end; !error && at != end; at.increment(error)) {
            entries.push_back(*at);
        }
        if (error) add(inside.empty() ? "." : shown(inside), "cannot be listed: " + error.message());
        std::sort(entries.begin(), entries.end());
        for (const auto& entry : entries) {
            if (full()) return;
            const std::string name = (inside.empty() ? "" : inside + "/") + entry.path().filename().string();
            // Itself, and not what it may point to; one that has gone meanwhile is no regular file.
            const fs::file_type type = entry.symlink_status(error).type();
            if (type == fs::file_type::directory && folders_.count(name) != 0) {
                walk(name);
                continue;
            }
            std::string problem = problem_of(type, name, entry);
            seen_[name] = problem.empty();
            add(shown(name), std::move(problem));
        }
    }

    // What is wrong with one entry; "" when it may be there.
    [[nodiscard]] std::string problem_of(fs::file_type type, const std::string& name,
                                         const fs::directory_entry& entry) const {
        if (type == fs::file_type::symlink) return "a link; a bundle holds regular files only";
        if (type == fs::file_type::directory) return "added: this folder is not part of the bundle";
        if (type != fs::file_type::regular) return "not a regular file";
        if (name == signature_name) {  // whether it is the right one takes a key: signature.cpp
            std::error_code error;
            const std::uintmax_t bytes = entry.file_size(error);
            if (bytes == signature_bytes) return "";
            return "not a signature: got " + to_string(bytes) + " bytes; expected " + to_string(signature_bytes);
        }
        const bool known = manifest_.files.count(name) != 0 || name == manifest_name;
        return known ? "" : "added: this file is not part of the bundle";
    }

    const fs::path& folder_;
    const Manifest& manifest_;
    std::set<std::string> folders_;
    std::map<std::string, bool> seen_;  ///< whether nothing is wrong with an entry so far
    std::vector<Finding> found_;
};

}  // namespace

RegularFile::RegularFile(const fs::path& path)
    // By descriptor, so that what is looked at is what is read.
    : descriptor_(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) {
    if (descriptor_ < 0) fail(errno);
    struct stat status {};
    const int error = ::fstat(descriptor_, &status) != 0 ? errno : 0;
    if (error == 0 && S_ISREG(status.st_mode)) return;
    ::close(descriptor_);
    if (error != 0) fail(error);
    throw std::runtime_error("not a regular file");
}

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

std::string read_bundled(const fs::path& path, std::uint64_t most) {
    try {
        RegularFile file(path);
        if (file.size() > most) throw std::runtime_error("it is larger than " + to_string(most) + " bytes");
        return file.read_up_to(file.size());
    } catch (const std::runtime_error& err) {
        throw IntegrityError(path.string() + ": cannot be read: " + err.what() + ".");
    }
}

std::string read_bundled(const fs::path& path) { return read_bundled(path, std::numeric_limits<std::uint64_t>::max()); }

bool is_inside(const fs::path& path, const fs::path& folder) {
    const auto resolved = [](const fs::path& given) {
        std::error_code error;
        const auto absolute = fs::absolute(given, error);
        const auto found = fs::weakly_canonical(error ? given : absolute, error);
        return error ? absolute.lexically_normal() : found;
    };
    const auto inner = resolved(path);
    const auto outer = resolved(folder);
    const auto [at, ignored] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
    return at == outer.end() || (std::next(at) == outer.end() && at->empty());  // empty: behind a last slash
}

fs::path not_empty(const fs::path& path) { return path.empty() ? "." : path; }

std::string hex(std::string_view bytes) {
    std::string text;
    for (const char byte : bytes) {
        const auto number = static_cast<unsigned char>(byte);
        text.push_back("0123456789abcdef"[number >> 4U]);
        text.push_back("0123456789abcdef"[number & 0xFU]);
    }
    return text;
}

std::string sha256(std::string_view data) {
    Sha256 sha;
    sha.update(data.data(), data.size());
    return sha.digest();
}

std::vector<Finding> check_files(const fs::path& folder, const Manifest& manifest) {
    return Check(folder, manifest).findings();
}

void require_files(const fs::path& folder, const Manifest& manifest) {
    const auto found = check_files(folder, manifest);
    if (found.empty()) return;
    const std::string more = found.size() > 1 ? " (" + to_string(found.size() - 1) + " more)" : "";
    throw IntegrityError((folder / found[0].name).string() + ": " + found[0].problem + more +
                         ". Restore the bundle as it was made.");
}

}  // namespace attnport::reader
