// Memory for a tensor that the library makes.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace attnport::reader {

/// `bytes` bytes of zeros, aligned for every dtype.
[[nodiscard]] inline std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    const auto owner = std::make_shared<std::vector<std::byte>>(bytes);
    return {owner, owner->data()};
}

}  // namespace attnport::reader
