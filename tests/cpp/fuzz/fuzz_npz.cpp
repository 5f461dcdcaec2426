// Any bytes as `goldens.npz`, and as one array of it: refused with std::invalid_argument, or arrays with their data.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "npy.hpp"

namespace {

namespace reader = attnport::reader;

void check(const reader::NpyArray& array) {
    const auto& tensor = array.tensor;
    if (tensor.data() == nullptr) return;  // of a dtype that no bundle has
    const auto* bytes = static_cast<const unsigned char*>(tensor.data());
    unsigned sum = 0;
    for (std::size_t at = 0; at < tensor.size() * attnport::size_bytes(tensor.dtype()); ++at) sum += bytes[at];
    std::uint64_t size = 1;
    for (const auto one : tensor.shape()) size *= static_cast<std::uint64_t>(one);
    if (size != tensor.size() || (sum != 0 && size == 0)) std::abort();
}

void read_npz(std::string_view data) {
    try {
        for (const auto& [name, array] : reader::read_npz(data)) check(array);
    } catch (const std::invalid_argument&) {
        return;
    }
}

// The sums of an archive keep most changes away from the arrays in it.
void read_npy(std::string_view data) {
    reader::Bytes bytes;
    bytes.reserve(data.size());
    for (const char byte : data) bytes.push_back(static_cast<std::byte>(byte));
    try {
        check(reader::read_npy("a", bytes));
    } catch (const std::invalid_argument&) {
        return;
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
    const std::string_view text(reinterpret_cast<const char*>(data), bytes);
    read_npz(text);
    read_npy(text);
    return 0;
}
