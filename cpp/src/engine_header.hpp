// The header of a serialized TensorRT-RTX engine: magic, size, version and target mask. NVIDIA does not document it;
// the layout was read off engines of TensorRT-RTX 1.7.1: see FORMAT.md and the Python reader's file of this name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace attnport::reader {

/// What the header says.
struct EngineHeader {
    std::string version;           ///< of the TensorRT-RTX that built it, such as `1.7.1.116`
    std::uint64_t size_bytes = 0;  ///< of the whole file; equal to what is on disk
    std::vector<std::int64_t> sm;  ///< the compute capabilities it runs on (`86` is 8.6)
};

/// Reads and checks the header of a TensorRT-RTX engine. It finds a file that is no engine and one that was cut short;
/// a changed byte behind the header it does not find. Throws SystemError: the file cannot be read;
/// std::invalid_argument: other magic, cut short, or bytes behind its end.
[[nodiscard]] EngineHeader read_header(const std::filesystem::path& path);

}  // namespace attnport::reader
