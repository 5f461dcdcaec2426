#include "opening.hpp"

#include <algorithm>
#include <stdexcept>

#include <attnport/error.hpp>

#include "external.hpp"
#include "regular.hpp"

namespace attnport::reader {
namespace {

void check_opset(const std::filesystem::path& path, const Form& form) {
    const std::int64_t got = opset(path);
    if (form.requires_.opset == got) return;
    throw IntegrityError(path.string() + ": got opset " + std::to_string(got) + "; the manifest says " +
                         (form.requires_.opset ? std::to_string(*form.requires_.opset) : "None") + ".");
}

/// What the file says about itself against the manifest.
void check_file(const std::filesystem::path& path, const Form& form) {
    const auto refuse = [&](const std::string& words) {
        const bool named = words.find(path.string()) != std::string::npos;
        throw IntegrityError(named ? words : path.string() + ": " + words);
    };
    try {
        if (form.is_engine()) {
            check_engine_file(path, form);
        } else {
            check_opset(path, form);
        }
    } catch (const SystemError& err) {
        refuse(err.what());
    } catch (const std::invalid_argument& err) {
        refuse(err.what());
    }
}

std::unique_ptr<Session> opened(const std::filesystem::path& path, const Manifest& manifest, const std::string& called,
                                const Options& options, const std::optional<Cache>& cache) {
    const Form& form = manifest.form(called);
    if (form.is_engine()) return open_engine(path, manifest, called, cache);
    if (form.runtime == "openvino") return open_openvino(path, manifest, form, options);
    return open_onnxruntime(path, manifest, form, options);
}

}  // namespace

std::vector<std::int64_t> release(std::string_view version) {
    constexpr std::size_t parts = 3;
    constexpr std::size_t digits = 15;  // a longer number, which nobody releases, would not fit
    std::vector<std::int64_t> found;
    std::size_t at = 0;
    version = version.substr(0, version.find_first_of("+-"));
    const auto is_digit = [&](std::size_t index) { return version[index] >= '0' && version[index] <= '9'; };
    while (at < version.size() && found.size() < parts) {
        if (!is_digit(at)) {
            ++at;
            continue;
        }
        std::int64_t number = 0;
        for (std::size_t taken = 0; at < version.size() && is_digit(at); ++at, ++taken) {
            if (taken < digits) number = 10 * number + (version[at] - '0');
        }
        found.push_back(number);
    }
    return found;
}

void require_release(std::string_view runtime, std::string_view version, const Requires& wanted, std::string_view how) {
    const bool fits = wanted.exact ? version == wanted.runtime : release(version) >= release(wanted.runtime);
    if (fits) return;
    throw RuntimeMissing("got " + std::string(runtime) + " " + std::string(version) + "; expected " + wanted.runtime +
                         (wanted.exact ? ", that release exactly" : " or later") + "; " + std::string(how) + ".");
}

bool may_map(const Manifest& manifest, const Form& form) {
    std::int64_t bytes = 0;
    for (const std::string& name : form.external) {
        bytes += std::min(manifest.files.at(name).bytes, read_bytes_at_most + 1);
    }
    return bytes > read_bytes_at_most;
}

std::string read_regular(const std::filesystem::path& path) {
    try {
        RegularFile file(path);
        return file.read_up_to(file.size());
    } catch (const SystemError& err) {
        throw IntegrityError(path.string() + ": cannot be read: " + err.what() + ".");
    } catch (const std::invalid_argument& err) {
        throw IntegrityError(path.string() + ": " + err.what() + ".");
    }
}

std::unique_ptr<Session> open_session(const std::filesystem::path& folder, const Manifest& manifest,
                                      const std::string& name, const Options& options,
                                      const std::optional<Cache>& cache) {
    const Form& form = manifest.form(name);
    const std::filesystem::path path = folder / form.file;
    check_file(path, form);
    auto session = opened(path, manifest, name, options, cache);
    check_ports(manifest.io, form, *session, path.string());
    if (form.is_engine()) check_profiles(manifest.io, form, *session, path.string());
    return session;
}

}  // namespace attnport::reader
