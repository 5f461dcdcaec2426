// SHA-256 (FIPS 180-4): OpenSSL's where the library is built with it, else our own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace attnport::reader {

class Sha256 {
public:
    Sha256();
    Sha256(const Sha256&) = delete;
    Sha256& operator=(const Sha256&) = delete;
    ~Sha256();

    void update(const void* data, std::size_t bytes);
    /// The digest of everything so far; nothing may be added behind it.
    [[nodiscard]] std::array<std::uint8_t, 32> digest();

private:
    struct State;
    std::unique_ptr<State> state_;
};

/// Lower-case hex digits.
[[nodiscard]] std::string hex(const std::uint8_t* data, std::size_t bytes);

/// The digest of a text, in hex.
[[nodiscard]] std::string sha256_hex(std::string_view data);

}  // namespace attnport::reader
