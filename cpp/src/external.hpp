// The external data that an ONNX file refers to, and its opset, read from the protobuf encoding without a library.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attnport::reader {

/// A tensor's external data: `length` bytes (none = to the end) of file `location`, from byte `offset`.
struct Reference {
    std::string location;
    std::uint64_t offset = 0;
    std::optional<std::uint64_t> length;
};

/// Every reference to external data in an ONNX file. Throws std::invalid_argument for what is not an ONNX file.
[[nodiscard]] std::vector<Reference> references(const std::filesystem::path& path);

/// The opset of ONNX's own operators that a file is written in. Throws std::invalid_argument when it names none.
[[nodiscard]] std::int64_t opset(const std::filesystem::path& path);

/// As the two above, of bytes in memory.
[[nodiscard]] std::vector<Reference> references(std::string_view data);
[[nodiscard]] std::int64_t opset(std::string_view data);

}  // namespace attnport::reader
