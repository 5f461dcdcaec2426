// The signature of a bundle: Ed25519 over its manifest, with a key from outside.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "format/manifest.hpp"

namespace attnport::reader {

inline constexpr std::string_view signature_name = "bundle.sig";
inline constexpr std::size_t signature_bytes = 64;

/// The signature in `folder`; none = not signed. Throws IntegrityError for something of that name that is none.
[[nodiscard]] std::optional<std::string> read_signature(const std::filesystem::path& folder);

/// Checks the signature of a manifest, and returns the key's fingerprint. Throws IntegrityError: none, or it does not
/// fit; Error: the key lies inside the bundle, or is no Ed25519 public key.
[[nodiscard]] std::string check_signature(std::string_view manifest, const std::optional<std::string>& signature,
                                          const std::filesystem::path& key, const std::filesystem::path& folder);

/// The manifest of a bundle, read in the order of trust: its size, its signature, and only then what it says.
struct Trusted {
    Manifest manifest;
    std::string fingerprint;  ///< of the key; empty without one
};
[[nodiscard]] Trusted read_trusted(const std::filesystem::path& folder,
                                   const std::optional<std::filesystem::path>& key);

}  // namespace attnport::reader
