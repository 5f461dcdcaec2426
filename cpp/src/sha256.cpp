#include "sha256.hpp"

#include <stdexcept>

#ifdef ATTNPORT_WITH_OPENSSL
#include <openssl/evp.h>
#else
#include <algorithm>
#include <cstring>
#endif

namespace attnport::reader {

#ifdef ATTNPORT_WITH_OPENSSL

struct Sha256::State {
    struct Free {
        void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
    };
    std::unique_ptr<EVP_MD_CTX, Free> context{EVP_MD_CTX_new()};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
    if (!state_->context || EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) != 1) {
        throw std::runtime_error("OpenSSL has no SHA-256");
    }
}

void Sha256::update(const void* data, std::size_t bytes) {
    if (EVP_DigestUpdate(state_->context.get(), data, bytes) != 1) throw std::runtime_error("OpenSSL: SHA-256 failed");
}

std::array<std::uint8_t, 32> Sha256::digest() {
    std::array<std::uint8_t, 32> result{};
    if (EVP_DigestFinal_ex(state_->context.get(), result.data(), nullptr) != 1) {
        throw std::runtime_error("OpenSSL: SHA-256 failed");
    }
    return result;
}

#else

namespace {

constexpr std::size_t block_bytes = 64;

constexpr std::array<std::uint32_t, 64> round_constants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

constexpr std::uint32_t rotated(std::uint32_t word, unsigned bits) noexcept {
    return word >> bits | word << (32U - bits);
}

}  // namespace

struct Sha256::State {
    std::array<std::uint32_t, 8> hash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::uint8_t, block_bytes> block{};
    std::size_t filled = 0;
    std::uint64_t bytes = 0;

    void compress(const std::uint8_t* data) noexcept {
        std::array<std::uint32_t, 64> schedule{};
        for (std::size_t t = 0; t < 16; ++t) {
            schedule[t] = std::uint32_t{data[4 * t]} << 24U | std::uint32_t{data[4 * t + 1]} << 16U |
                          std::uint32_t{data[4 * t + 2]} << 8U | std::uint32_t{data[4 * t + 3]};
        }
        for (std::size_t t = 16; t < 64; ++t) {
            const std::uint32_t early = schedule[t - 15];
            const std::uint32_t late = schedule[t - 2];
            schedule[t] = schedule[t - 16] + (rotated(early, 7) ^ rotated(early, 18) ^ early >> 3U) + schedule[t - 7] +
                          (rotated(late, 17) ^ rotated(late, 19) ^ late >> 10U);
        }
        auto [a, b, c, d, e, f, g, h] = hash;
        for (std::size_t t = 0; t < 64; ++t) {
            const std::uint32_t first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) +
                                        round_constants[t] + schedule[t];
            const std::uint32_t second =
                (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
            h = g;
            g = f;
            f = e;
            e = d + first;
            d = c;
            c = b;
            b = a;
            a = first + second;
        }
        const std::array<std::uint32_t, 8> added = {a, b, c, d, e, f, g, h};
        for (std::size_t index = 0; index < hash.size(); ++index) hash[index] += added[index];
    }

    void take(const std::uint8_t* data, std::size_t size) noexcept {
        while (size > 0) {
            if (filled == 0 && size >= block_bytes) {
                compress(data);
                data += block_bytes;
                size -= block_bytes;
                continue;
            }
            const std::size_t part = std::min(block_bytes - filled, size);
            std::memcpy(block.data() + filled, data, part);
            filled += part;
            data += part;
            size -= part;
            if (filled == block_bytes) {
                compress(block.data());
                filled = 0;
            }
        }
    }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {}

void Sha256::update(const void* data, std::size_t bytes) {
    state_->bytes += bytes;
    state_->take(static_cast<const std::uint8_t*>(data), bytes);
}

std::array<std::uint8_t, 32> Sha256::digest() {
    const std::uint64_t bits = state_->bytes * 8;
    std::array<std::uint8_t, block_bytes + 8> padding = {0x80};
    const std::size_t zeros = (block_bytes + 56 - 1 - state_->filled) % block_bytes;
    for (std::size_t index = 0; index < 8; ++index) {
        padding[1 + zeros + index] = static_cast<std::uint8_t>(bits >> 8U * (7 - index) & 0xFFU);
    }
    state_->take(padding.data(), 1 + zeros + 8);
    std::array<std::uint8_t, 32> result{};
    for (std::size_t index = 0; index < result.size(); ++index) {
        result[index] = static_cast<std::uint8_t>(state_->hash[index / 4] >> 8U * (3 - index % 4) & 0xFFU);
    }
    return result;
}

#endif

Sha256::~Sha256() = default;

std::string hex(const std::uint8_t* data, std::size_t bytes) {
    std::string text;
    text.reserve(2 * bytes);
    for (std::size_t index = 0; index < bytes; ++index) {
        text.push_back("0123456789abcdef"[data[index] >> 4U]);
        text.push_back("0123456789abcdef"[data[index] & 0xFU]);
    }
    return text;
}

std::string sha256_hex(std::string_view data) {
    Sha256 sha;
    sha.update(data.data(), data.size());
    const auto digest = sha.digest();
    return hex(digest.data(), digest.size());
}

}  // namespace attnport::reader
