// One NumPy array, from bytes that nobody vouches for, and what reading an archive of them needs too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "goldens.hpp"

namespace attnport::reader {

using Bytes = std::vector<std::byte>;

/// Throws std::invalid_argument.
[[noreturn]] void refuse(const std::string& message);

/// A view of bytes from which nothing is taken that is not there.
class Piece {
public:
    explicit Piece(std::string_view data) : data_(data) {}

    [[nodiscard]] std::string_view slice(std::uint64_t at, std::uint64_t bytes) const;
    /// A little-endian number of at most 4 bytes.
    [[nodiscard]] std::uint32_t number(std::uint64_t at, unsigned bytes) const;
    [[nodiscard]] std::size_t size() const noexcept { return data_.size(); }

private:
    std::string_view data_;
};

/// The array of an npy file. Throws as read_npz.
[[nodiscard]] NpyArray read_npy(const std::string& name, const Bytes& raw);

}  // namespace attnport::reader
