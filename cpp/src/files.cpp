#include "files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <attnport/error.hpp>

#include "external.hpp"
#include "regular.hpp"
#include "sha256.hpp"
#include "signature.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

using std::to_string;

std::string word(int error) { return std::generic_category().message(error); }

// A folder that is open; closed by its destructor.
class Folder {
public:
    explicit Folder(const std::filesystem::path& path) : Folder(::open(path.c_str(), flags)) {}

    /// A folder inside of `outer`, which is no link.
    Folder(const Folder& outer, const std::string& name)
        : Folder(::openat(::dirfd(outer.stream_), name.c_str(), flags | O_NOFOLLOW)) {}

    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    Folder(Folder&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
    Folder& operator=(Folder&& other) noexcept {
        std::swap(stream_, other.stream_);
        return *this;
    }
    ~Folder() {
        if (stream_ != nullptr) ::closedir(stream_);
    }

    [[nodiscard]] std::vector<std::string> names() const {
        std::vector<std::string> found;
        errno = 0;
        while (const dirent* entry = ::readdir(stream_)) {  // NOLINT(concurrency-mt-unsafe): nobody shares the stream
            const std::string name = static_cast<const char*>(entry->d_name);
            if (name != "." && name != "..") found.push_back(name);
            errno = 0;
        }
        if (errno != 0) throw SystemError(word(errno));
        return found;
    }

    /// What an entry is, itself and not what it may point to; nothing for one that has gone.
    [[nodiscard]] struct stat status(const std::string& name) const {
        struct stat found {};
        if (::fstatat(::dirfd(stream_), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) found.st_mode = 0;
        return found;
    }

private:
    static constexpr int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

    explicit Folder(int descriptor) {
        if (descriptor < 0) throw SystemError(word(errno));
        stream_ = ::fdopendir(descriptor);
        if (stream_ != nullptr) return;
        const int error = errno;
        ::close(descriptor);
        throw SystemError(word(error));
    }

    DIR* stream_ = nullptr;
};

std::vector<std::string> split(const std::string& name) {
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < name.size();) {
        const std::size_t end = std::min(name.find('/', at), name.size());
        parts.push_back(name.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

Folder opened(const std::filesystem::path& root, const std::string& name) {
    Folder folder(root);
    for (const auto& part : split(name)) folder = Folder(folder, part);
    return folder;
}

// What differs between a file and its record; "" = nothing.
std::string compare(const std::filesystem::path& path, const File& expected) {
    try {
        RegularFile file(path);
        const std::uint64_t got = file.size();
        if (got != static_cast<std::uint64_t>(expected.bytes)) {
            return "changed: got " + to_string(got) + " bytes; expected " + to_string(expected.bytes);
        }
        Sha256 sha;
        std::vector<std::uint8_t> chunk(std::size_t{1} << 20U);
        while (const std::size_t bytes = file.read(chunk.data(), chunk.size())) sha.update(chunk.data(), bytes);
        const auto digest = sha.digest();
        const bool same = hex(digest.data(), digest.size()) == expected.sha256;
        return same ? "" : "changed: its SHA-256 is not that of the manifest";
    } catch (const SystemError& error) {
        return std::string("cannot be read: ") + error.what();
    } catch (const std::invalid_argument& error) {
        return error.what();
    }
}

// The ranges that a model takes from each of its weights files.
class Taken {
public:
    Taken(const Manifest& manifest, const Form& form) : manifest_(manifest), form_(form) {}

    /// What is wrong with one reference; "" = nothing.
    std::string add(const Reference& reference) {
        const auto& own = form_.external;
        const auto& location = reference.location;
        if (std::find(own.begin(), own.end(), location) == own.end()) {
            return "takes weights from " + quoted(location) + "; its weights files are " +
                   (own.empty() ? "none" : joined(own));
        }
        const auto size = static_cast<std::uint64_t>(manifest_.files.at(location).bytes);
        const std::uint64_t left = reference.offset <= size ? size - reference.offset : 0;
        const std::uint64_t length = reference.length.value_or(left);
        if (reference.offset > size || length > left) {
            return "takes " + to_string(length) + " bytes of weights from byte " + to_string(reference.offset) +
                   " of " + location + ", which has " + to_string(size);
        }
        if (length == 0) return "";
        ranges_[location].emplace(reference.offset, length);
        return "";
    }

    /// The first overlap; "" = none.
    [[nodiscard]] std::string overlap() const {
        for (const auto& [location, ranges] : ranges_) {
            std::uint64_t end = 0;
            for (const auto& [offset, length] : ranges) {
                if (offset < end) {
                    return "takes overlapping weights from " + location + " at byte " + to_string(offset);
                }
                end = offset + length;
            }
        }
        return "";
    }

private:
    const Manifest& manifest_;
    const Form& form_;
    std::map<std::string, std::set<std::pair<std::uint64_t, std::uint64_t>>> ranges_;
};

class Check {
public:
    Check(const std::filesystem::path& folder, const Manifest& manifest) : folder_(folder), manifest_(manifest) {
        for (const auto& [name, file] : manifest.files) {
            for (auto at = name.find('/'); at != std::string::npos; at = name.find('/', at + 1)) {
                folders_.insert(name.substr(0, at));
            }
        }
    }

    std::vector<Finding> findings() {
        walk();
        for (const auto& [name, expected] : manifest_.files) {
            if (full()) return std::move(found_);
            const auto problem = problems_.find(name);
            if (problem != problems_.end() && !problem->second.empty()) continue;  // said already; perhaps a pipe
            add(name, problem == problems_.end() ? "missing" : compare(folder_ / name, expected));
        }
        // The models are looked into only once they are known to be the ones that were bundled.
        if (!found_.empty()) return std::move(found_);
        for (const auto& [name, form] : manifest_.forms) {
            if (!full() && !form.is_engine()) add(form.file, external(form));
        }
        return std::move(found_);
    }

private:
    [[nodiscard]] bool full() const { return found_.size() >= max_findings; }

    void add(const std::string& name, std::string problem) {
        if (!problem.empty() && !full()) found_.push_back({name, std::move(problem)});
    }

    void note(const std::string& name, const std::string& problem) {
        problems_[name] = problem;
        if (!problem.empty()) add(shown(name), problem);
    }

    void walk() {
        std::vector<std::string> pending = {""};
        while (!pending.empty() && !full()) {
            const std::string at = std::move(pending.back());
            pending.pop_back();
            try {
                const Folder folder = opened(folder_, at);
                auto names = folder.names();
                std::sort(names.begin(), names.end());
                for (const auto& name : names) {
                    const std::string path = at.empty() ? name : at + "/" + name;
                    const struct stat status = folder.status(name);
                    if (full()) return;
                    if (S_ISDIR(status.st_mode) && folders_.count(path) != 0) {
                        pending.push_back(path);
                    } else {
                        note(path, problem(status, path));
                    }
                }
            } catch (const SystemError& error) {
                note(at.empty() ? "." : at, std::string("cannot be listed: ") + error.what());
            }
        }
    }

    // What is wrong with one entry; "" when it may be there.
    [[nodiscard]] std::string problem(const struct stat& status, const std::string& path) const {
        if (S_ISLNK(status.st_mode)) return "a link; a bundle holds regular files only";
        if (S_ISDIR(status.st_mode)) return "added: this folder is not part of the bundle";
        if (!S_ISREG(status.st_mode)) return "not a regular file";
        if (path == signature_name) {  // whether it is the right one takes a key: signature.cpp
            if (status.st_size == static_cast<off_t>(signature_bytes)) return "";
            return "not a signature: got " + to_string(status.st_size) + " bytes; expected " +
                   to_string(signature_bytes);
        }
        const bool known = manifest_.files.count(path) != 0 || path == manifest_name;
        return known ? "" : "added: this file is not part of the bundle";
    }

    // External data that a model takes from elsewhere than its own weights files, or from beyond their end.
    [[nodiscard]] std::string external(const Form& form) const {
        Taken taken(manifest_, form);
        try {
            for (const auto& reference : references(folder_ / form.file)) {
                std::string problem = taken.add(reference);
                if (!problem.empty()) return problem;
            }
        } catch (const std::exception& error) {
            return std::string("not a model that can be read: ") + error.what();
        }
        return taken.overlap();
    }

    const std::filesystem::path& folder_;
    const Manifest& manifest_;
    std::set<std::string> folders_;
    std::map<std::string, std::string> problems_;
    std::vector<Finding> found_;
};

}  // namespace

std::vector<Finding> check_files(const std::filesystem::path& folder, const Manifest& manifest) {
    return Check(folder, manifest).findings();
}

void require_files(const std::filesystem::path& folder, const Manifest& manifest) {
    const auto found = check_files(folder, manifest);
    if (found.empty()) return;
    const std::string more = found.size() > 1 ? " (" + to_string(found.size() - 1) + " more)" : "";
    throw IntegrityError((folder / found[0].name).string() + ": " + found[0].problem + more +
                         ". Restore the bundle as it was made.");
}

}  // namespace attnport::reader
