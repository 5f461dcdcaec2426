// Any bytes as `goldens.safetensors`: refused with IntegrityError, or arrays with their data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <attnport/error.hpp>

#include "run/goldens.hpp"

namespace {

void check(const attnport::Tensor& tensor) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.data());
    unsigned sum = 0;
    for (std::size_t at = 0; at < tensor.size() * attnport::size_bytes(tensor.dtype()); ++at) sum += bytes[at];
    std::uint64_t size = 1;
    for (const auto one : tensor.shape()) size *= static_cast<std::uint64_t>(one);
    if (size != tensor.size() || (sum != 0 && size == 0)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    const std::string_view text(reinterpret_cast<const char*>(data), bytes);
    try {
        for (const auto& [name, tensor] : attnport::reader::read_safetensors(text, "goldens")) check(tensor);
    } catch (const attnport::IntegrityError&) {
        return 0;
    }
    return 0;
}
