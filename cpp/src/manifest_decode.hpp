// The parsed text of a manifest into a Manifest, and the rules that hold between its parts.
#pragma once

#include <string>

#include "json.hpp"
#include "manifest.hpp"

namespace attnport::reader {

/// Throws IntegrityError, which names the place in the file, what was got and what is expected.
[[nodiscard]] Manifest decode_manifest(const Value& value, const std::string& where);

}  // namespace attnport::reader
