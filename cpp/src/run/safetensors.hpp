// A file of arrays in the safetensors format, from bytes that nobody vouches for: FORMAT.md, "Goldens".
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include <attnport/tensor.hpp>

namespace attnport::reader {

/// The most bytes of such a file, and of an array in it.
inline constexpr std::size_t max_safetensors_bytes = std::size_t{1} << 30U;

/// The arrays of a safetensors file by name; `where` is what messages call the file. Throws IntegrityError where the
/// file is damaged or contradicts itself, or holds what no golden array is.
[[nodiscard]] std::map<std::string, Tensor> read_safetensors(std::string_view data, const std::string& where);

}  // namespace attnport::reader
