// Of an engine: its file's header, the library that runs it, and the choice of a profile.
//
// The header of a serialized TensorRT-RTX engine is magic, size, version and target mask. NVIDIA does not document it;
// the layout was read off engines of TensorRT-RTX 1.7.1: see FORMAT.md and Python's reader.
#include "runtimes/engine.hpp"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include <attnport/error.hpp>

#include "format/files.hpp"
#include "format/text.hpp"

namespace attnport::reader {
namespace {

constexpr std::string_view engine_magic = "vtrt";
constexpr std::size_t header_bytes = 36;
constexpr std::size_t size_at = 16;
constexpr std::size_t version_at = 24;
constexpr std::size_t version_parts = 4;
constexpr std::size_t targets_at = 32;
/// Compute capability by bit.
constexpr std::array<std::pair<std::uint64_t, int>, 6> target_bits = {
    {{1U << 0U, 75}, {1U << 1U, 80}, {1U << 2U, 86}, {1U << 3U, 89}, {1U << 4U, 120}, {1U << 5U, 121}}};
/// Set in an engine for the builder's default list: devices still to come.
constexpr std::uint64_t later_bit = 1U << 6U;

std::uint64_t little_endian(std::string_view data, std::size_t at, std::size_t bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = bytes; i > 0; --i) number = number << 8U | static_cast<unsigned char>(data[at + i - 1]);
    return number;
}

std::string variable_of(const std::string& runtime) {
    return runtime == "tensorrt_rtx" ? "ATTNPORT_TENSORRT_RTX" : "ATTNPORT_TENSORRT";
}

/// The loader's name of a library: NVIDIA puts the major release into it. The lean and dispatch runtimes are not asked
/// for: they take version-compatible engines alone.
std::string file_name(const std::string& runtime, const std::string& required) {
    const std::vector<std::int64_t> numbers = release(required);
    const std::string suffix = numbers.empty() ? "" : "." + std::to_string(numbers.front());
    return (runtime == "tensorrt_rtx" ? "libtensorrt_rtx.so" : "libnvinfer.so") + suffix;
}

/// A name for messages, such as `TensorRT-RTX 1.7`.
std::string words(std::string_view runtime, int major, int minor) {
    return (runtime == "tensorrt_rtx" ? "TensorRT-RTX " : "TensorRT ") + std::to_string(major) + "." +
           std::to_string(minor);
}

/// Releases in which the classes that a session calls lie alike in memory have one number.
///
/// TensorRT's own promise is a major release. TensorRT-RTX promises nothing, and took functions away from 1.4 to 1.5.
/// Compared: the headers of 1.3 to 1.6, and those of 1.6 with the library 1.7.1; see engine_session.cpp.
int layout(std::string_view runtime, int major, int minor) {
    if (runtime != "tensorrt_rtx" || major != 1) return runtime != "tensorrt_rtx" ? 0 : minor;
    if (minor >= 3 && minor <= 4) return 3;
    if (minor >= 5 && minor <= 7) return 5;
    return minor;
}

bool admits(const Range& range, const Shape& shape) {
    if (shape.size() != range.least.size() || shape.size() != range.largest.size()) return false;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        if (shape[axis] < range.least[axis] || shape[axis] > range.largest[axis]) return false;
    }
    return true;
}

/// How many profiles do not admit an input's shape.
std::size_t missed(const std::vector<std::vector<Range>>& profiles, std::size_t input, const Shape& shape) {
    std::size_t count = 0;
    for (const auto& ranges : profiles) count += admits(ranges[input], shape) ? 0U : 1U;
    return count;
}

/// The sum of all largest sizes; in floating point, where it cannot overflow.
double end(const std::vector<Range>& ranges) {
    double sum = 0;
    for (const Range& range : ranges) {
        for (const std::int64_t size : range.largest) sum += static_cast<double>(size);
    }
    return sum;
}

}  // namespace

EngineHeader read_header(const std::filesystem::path& path) {
    const std::string where = path.string();
    std::string head;
    std::uint64_t size = 0;
    try {
        RegularFile file(path);
        head = file.read_up_to(header_bytes);
        size = file.size();
    } catch (const std::runtime_error& err) {
        throw IntegrityError(where + ": cannot be read: " + err.what() + ".");
    }
    if (head.compare(0, engine_magic.size(), engine_magic) != 0) {
        const std::string got = hex(std::string_view(head).substr(0, engine_magic.size()));
        throw IntegrityError(where + " is no TensorRT-RTX engine by its header: got first bytes " +
                                    (got.empty() ? "none" : got) + "; expected " + hex(engine_magic) + ".");
    }
    if (head.size() < header_bytes) {
        throw IntegrityError(where + " is cut short: got " + std::to_string(head.size()) +
                                    " bytes, less than a header.");
    }
    const std::uint64_t declared = little_endian(head, size_at, 8);
    if (declared != size) {
        throw IntegrityError(where + " is cut short or has bytes behind its end: got " + std::to_string(size) +
                                    " bytes; its header says " + std::to_string(declared) + ".");
    }
    EngineHeader found;
    found.size_bytes = declared;
    for (std::size_t part = 0; part < version_parts; ++part) {
        found.version += (part == 0 ? "" : ".") + std::to_string(little_endian(head, version_at + part, 1));
    }
    const std::uint64_t targets = little_endian(head, targets_at, 4);
    for (const auto& [bit, sm] : target_bits) {
        if ((targets & bit) != 0) found.sm.push_back(sm);
    }
    found.later = (targets & later_bit) != 0;
    return found;
}

void check_engine_file(const std::filesystem::path& path, const Form& form) {
    if (form.runtime != "tensorrt_rtx") return;  // nothing is known of the header of the other flavour
    const EngineHeader header = read_header(path);
    if (header.version == form.requires_.runtime && header.sm == form.requires_.sm) return;
    throw IntegrityError(path.string() + ": got version " + header.version +
                                " and compute capabilities " + listed(header.sm) + "; the manifest says " +
                                form.requires_.runtime + " and " + listed(form.requires_.sm) + ".");
}

EngineLibrary::EngineLibrary(const std::string& runtime, const Requires& required) : runtime_(runtime) {
    const std::string variable = variable_of(runtime);
    const char* const named = std::getenv(variable.c_str());  // NOLINT(concurrency-mt-unsafe): nothing here sets one
    const std::string path = named != nullptr && *named != '\0' ? named : file_name(runtime, required.runtime);
    // It stays loaded: TensorRT has threads and handlers of its own.
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        const char* const problem = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps one a thread
        throw RuntimeMissing(runtime + " cannot be loaded: " + (problem != nullptr ? problem : path.c_str()) +
                             "; put the library's path into " + variable + ".");
    }
    std::vector<int> parts;
    for (const char* part : {"Major", "Minor", "Patch", "Build"}) {
        std::string name = "getInferLib";
        name.append(part).append("Version");
        // POSIX: dlsym gives functions so.
        const auto ask = reinterpret_cast<std::int32_t (*)()>(dlsym(library, name.c_str()));
        if (ask == nullptr) throw RuntimeMissing(path + " is no library of " + runtime + ": it has no " + name + ".");
        parts.push_back(ask());
        if (!version_.empty()) version_ += '.';
        version_ += std::to_string(parts.back());
    }
    major_ = parts[0];
    minor_ = parts[1];
    require_release(runtime, version_, required, "put that library's path into " + variable);
    create_ = reinterpret_cast<void* (*)(void*, std::int32_t)>(dlsym(library, "createInferRuntime_INTERNAL"));
    if (create_ == nullptr) {
        throw RuntimeMissing(path + " is no library of " + runtime + ": it has no createInferRuntime_INTERNAL.");
    }
}

void EngineLibrary::require(const Headers& headers) const {
    if (headers.runtime == runtime_ && headers.major == major_ &&
        layout(runtime_, headers.major, headers.minor) == layout(runtime_, major_, minor_) &&
        (runtime_ == "tensorrt_rtx" || headers.minor <= minor_)) {
        return;
    }
    throw RuntimeMissing("compiled with headers of " + words(headers.runtime, headers.major, headers.minor) +
                         "; this is " + words(runtime_, major_, minor_) +
                         ". Build with its own headers: CMake's TENSORRT_INCLUDE_DIR.");
}

void* EngineLibrary::create_runtime(void* logger, std::int32_t headers_version) const {
    return create_(logger, headers_version);
}

std::size_t choose_profile(const std::vector<std::vector<Range>>& profiles, const std::vector<Port>& inputs,
                           const std::vector<Shape>& shapes) {
    std::size_t best = profiles.size();
    double soonest = std::numeric_limits<double>::infinity();
    for (std::size_t index = 0; index < profiles.size(); ++index) {
        bool fits = true;
        for (std::size_t input = 0; fits && input < shapes.size(); ++input) {
            fits = admits(profiles[index][input], shapes[input]);
        }
        if (!fits || end(profiles[index]) >= soonest) continue;
        soonest = end(profiles[index]);
        best = index;
    }
    if (best < profiles.size()) return best;
    if (inputs.empty()) throw FeedError("the engine has no input, and no profile.");

    std::size_t worst = 0;
    for (std::size_t input = 1; input < shapes.size(); ++input) {
        if (missed(profiles, input, shapes[input]) > missed(profiles, worst, shapes[worst])) worst = input;
    }
    std::vector<std::string> spans;
    spans.reserve(profiles.size());
    for (const auto& ranges : profiles) {
        spans.push_back(listed(ranges[worst].least) + " to " + listed(ranges[worst].largest));
    }
    throw FeedError("input " + reader::quoted(inputs[worst].name) + ": got shape " + listed(shapes[worst]) +
                    "; the engine's profiles take " + (spans.empty() ? "nothing" : joined(spans, "; ")) +
                    ". Build an engine with a profile that covers it.");
}

}  // namespace attnport::reader
