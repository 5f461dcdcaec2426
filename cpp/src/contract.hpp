// The contract of a model as the manifest has it, with the rules that it keeps; the values are in
// <attnport/contract.hpp>.
#pragma once

#include <map>
#include <string>

#include <attnport/contract.hpp>

#include "manifest.hpp"

namespace attnport::reader {

class Located;

/// Throws IntegrityError.
[[nodiscard]] IO io_of(const Located& at);
/// Throws IntegrityError also unless the profile has the model's dims, in order, each inside its range.
[[nodiscard]] Profile profile_of(const Located& at, const IO& io);

/// Whether every size lies in its dim's range; `sizes` are by name, and a dim without one does not matter.
[[nodiscard]] bool admits(const Profile& profile, const std::map<std::string, std::int64_t>& sizes);

}  // namespace attnport::reader
