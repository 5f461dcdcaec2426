// The header of a serialized TensorRT-RTX engine: magic, size, version and target mask. NVIDIA does not document it;
// the layout was read off engines of TensorRT-RTX 1.7.1: see FORMAT.md and the Python reader's file of this name.
#include <array>
#include <cstddef>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "opening.hpp"
#include "regular.hpp"
#include "sha256.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

constexpr std::string_view engine_magic = "vtrt";
constexpr std::size_t header_bytes = 36;
constexpr std::size_t size_at = 16;
constexpr std::size_t version_at = 24;
constexpr std::size_t version_parts = 4;
constexpr std::size_t targets_at = 32;
/// Compute capability by bit. An engine for the builder's default list also sets bit 6, for devices still to come.
constexpr std::array<std::pair<std::uint64_t, int>, 6> target_bits = {
    {{1U << 0U, 75}, {1U << 1U, 80}, {1U << 2U, 86}, {1U << 3U, 89}, {1U << 4U, 120}, {1U << 5U, 121}}};

std::uint64_t little_endian(std::string_view data, std::size_t at, std::size_t bytes) {
    std::uint64_t number = 0;
    for (std::size_t i = bytes; i > 0; --i) number = number << 8U | static_cast<unsigned char>(data[at + i - 1]);
    return number;
}

std::string in_hex(std::string_view data) {
    return hex(reinterpret_cast<const std::uint8_t*>(data.data()), data.size());  // bytes may be read as bytes
}

}  // namespace

EngineHeader read_header(const std::filesystem::path& path) {
    RegularFile file(path);
    const std::string head = file.read_up_to(header_bytes);
    const std::uint64_t size = file.size();
    const std::string where = path.string();
    if (head.compare(0, engine_magic.size(), engine_magic) != 0) {
        const std::string got = in_hex(std::string_view(head).substr(0, engine_magic.size()));
        throw std::invalid_argument(where + " is no TensorRT-RTX engine by its header: got first bytes " +
                                    (got.empty() ? "none" : got) + "; expected " + in_hex(engine_magic) + ".");
    }
    if (head.size() < header_bytes) {
        throw std::invalid_argument(where + " is cut short: got " + std::to_string(head.size()) +
                                    " bytes, less than a header.");
    }
    const std::uint64_t declared = little_endian(head, size_at, 8);
    if (declared != size) {
        throw std::invalid_argument(where + " is cut short or has bytes behind its end: got " + std::to_string(size) +
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
    return found;
}

void check_engine_file(const std::filesystem::path& path, const Form& form) {
    if (form.runtime != "tensorrt_rtx") return;  // nothing is known of the header of the other flavour
    const EngineHeader header = read_header(path);
    if (header.version == form.requires_.runtime && header.sm == form.requires_.sm) return;
    throw std::invalid_argument(path.string() + ": got version " + header.version +
                                " and compute capabilities " + listed(header.sm) + "; the manifest says " +
                                form.requires_.runtime + " and " + listed(form.requires_.sm) + ".");
}

}  // namespace attnport::reader
