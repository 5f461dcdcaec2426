// The rules that a contract keeps; the values are in <attnport/contract.hpp>. Each throws std::invalid_argument.
#pragma once

#include <attnport/contract.hpp>

#include "manifest.hpp"

namespace attnport::reader {

void check(const Dim& dim);
void check(const TensorSpec& spec);
void check(const Mask& mask);
void check(const IO& io);
/// Unless the profile has the model's dims, in order, each inside its range.
void check(const Profile& profile, const IO& io);

/// Whether every size lies in its dim's range; `sizes` are by name, and a dim without one does not matter.
[[nodiscard]] bool admits(const Profile& profile, const Ordered<std::int64_t>& sizes);

}  // namespace attnport::reader
