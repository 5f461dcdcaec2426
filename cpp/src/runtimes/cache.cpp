#include "runtimes/cache.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>

#include <attnport/error.hpp>

#include "format/files.hpp"

namespace attnport::reader {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_bytes = 1U << 30U;
constexpr std::string_view entry_magic("attnport-rtx-1\0\0", 16);
constexpr std::size_t digest_bytes = 32;
constexpr std::size_t key_bytes = 64;

std::string variable(const char* key) {
    const char* const found = std::getenv(key);  // NOLINT(concurrency-mt-unsafe): nothing here sets one
    return found == nullptr ? "" : found;
}

/// Where the cache lies when nobody says; empty on a system without a home folder.
fs::path default_folder() {
    if (std::string named = variable("ATTNPORT_CACHE"); !named.empty()) return named;
    // XDG: a path that is not absolute is to be ignored.
    if (const fs::path base = variable("XDG_CACHE_HOME"); base.is_absolute()) return base / "attnport";
    const fs::path home = variable("HOME");
    return home.empty() ? home : home / ".cache" / "attnport";
}

/// Makes the folder, for this user alone, and says why it cannot be used; "" = it can.
std::string problem_of(const fs::path& asked) {
    const fs::path folder = asked.has_filename() ? asked : asked.parent_path();  // without a last slash
    std::error_code error;
    fs::create_directories(folder.parent_path(), error);  // what is wrong with them shows in the next call
    struct stat status {};
    if (::mkdir(folder.c_str(), S_IRWXU) != 0) {
        const int reason = errno;
        const bool is_there = ::stat(folder.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
        if (!is_there) return std::generic_category().message(reason);
    }
    if (::stat(folder.c_str(), &status) != 0) return std::generic_category().message(errno);
    if (!S_ISDIR(status.st_mode)) return "not a folder";
    if (status.st_uid != ::getuid()) return "it belongs to user " + std::to_string(status.st_uid);
    return (status.st_mode & (S_IWGRP | S_IWOTH)) != 0 ? "others may write to it" : "";
}

/// One part of a text that has no other reading.
std::string field(const char* key, const std::string& value) {
    return std::string(key) + " " + std::to_string(value.size()) + ":" + value + "\n";
}

}  // namespace

std::optional<std::string> CacheFolder::read(const std::string& name) const {
    try {
        RegularFile file(folder_ / name);
        std::string data = file.read_up_to(max_bytes + 1);
        if (data.size() <= max_bytes) return data;
    } catch (const std::runtime_error&) {
        return std::nullopt;
    }
    return std::nullopt;
}

bool CacheFolder::write(const std::string& name, std::string_view data) const {
    static std::atomic<unsigned> drafts{0};
    const fs::path draft = folder_ / ("." + std::to_string(::getpid()) + "." + std::to_string(drafts++));
    std::ofstream file(draft, std::ios::binary);
    file.write(data.data(), static_cast<std::streamsize>(data.size()));
    file.close();
    std::error_code error;
    if (file) fs::rename(draft, folder_ / name, error);
    if (file && !error) return true;
    fs::remove(draft, error);
    return false;
}

std::optional<CacheFolder> find_cache(const fs::path& bundle, const fs::path& asked, const Warn& warn) {
    const fs::path folder = asked.empty() ? default_folder() : asked;
    if (folder.empty()) return std::nullopt;
    if (is_inside(folder, bundle)) {
        throw Error(folder.string() + ": a cache inside the bundle " + bundle.string() +
                    " would not be believed; take a folder outside.");
    }
    const std::string problem = problem_of(folder);
    if (problem.empty()) return CacheFolder(folder);
    if (warn) warn(folder.string() + ": no cache is kept there: " + problem + ".");
    return std::nullopt;
}

std::string entry(const Manifest& manifest, const std::string& form, const std::string& provider,
                  const std::string& version, const Machine& machine) {
    return hex(sha256("attnport-bundle C++ entry 1\n" + field("manifest", manifest.digest) + field("form", form) +
                      field("runtime", manifest.form(form).runtime) + field("provider", provider) +
                      field("version", version) + field("device", machine.device) + field("uuid", machine.uuid) +
                      field("sm", std::to_string(machine.sm)) + field("driver", machine.driver)));
}

std::optional<std::string> RuntimeCache::read() {
    const std::optional<std::string> data = cache_.read(entry_ + ".rtxcache");
    const std::size_t head = entry_magic.size() + digest_bytes;
    if (!data || data->size() < head + key_bytes) return std::nullopt;
    if (data->compare(0, entry_magic.size(), entry_magic) != 0) return std::nullopt;
    const std::string_view rest = std::string_view(*data).substr(head);
    if (data->compare(entry_magic.size(), digest_bytes, sha256(rest)) != 0) return std::nullopt;
    if (rest.substr(0, key_bytes) != entry_) return std::nullopt;
    last_ = std::string(rest.substr(key_bytes));
    return last_;
}

void RuntimeCache::write(std::string_view blob) {
    if (last_ && *last_ == blob) return;
    const std::string rest = entry_ + std::string(blob);
    const std::string whole = std::string(entry_magic) + sha256(rest) + rest;
    if (cache_.write(entry_ + ".rtxcache", whole)) last_ = std::string(blob);
}

}  // namespace attnport::reader
