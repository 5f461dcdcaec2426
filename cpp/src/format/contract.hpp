// The contract of a model as the manifest has it, with the rules that it keeps; the values are in
// <attnport/contract.hpp>.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <attnport/contract.hpp>

#include "format/manifest.hpp"

namespace attnport::reader {

class Located;

/// Throws IntegrityError.
[[nodiscard]] IO io_of(const Located& at);
/// Throws IntegrityError also unless the profile has the model's dims, in order, each inside its range, with its step.
[[nodiscard]] Profile profile_of(const Located& at, const IO& io);

/// Whether nothing tells a size before a call; that of an output may be so.
[[nodiscard]] bool is_unknown(const Axis& axis);
/// The dim that a size is the name of; null for another size.
[[nodiscard]] const Dim* dim_of(const std::vector<Dim>& dims, const Axis& axis);
/// Whether a size is a dim, or an expression of it: then it is no expression of the other dims.
[[nodiscard]] bool follows(const IO& io, const Axis& axis, const std::string& dim);
/// Whether a size lies in the dim's range, and is a multiple of its step.
[[nodiscard]] bool takes(const Dim& dim, std::int64_t size);
/// The smallest size that the dim takes and that is `size` or more; the largest one if there is none.
[[nodiscard]] std::int64_t at_least(const Dim& dim, std::int64_t size);
/// The sizes that the dim takes: `1 to 512`, or `4 to 512 in steps of 4`.
[[nodiscard]] std::string span(const Dim& dim);
/// The option that would have allowed a size beyond the range, as a sentence behind a message; "" if there is none.
[[nodiscard]] std::string wider(const Dim& dim, std::int64_t size);

/// Whether its dims take every size; `sizes` are by name, and a dim without one does not matter.
[[nodiscard]] bool admits(const Profile& profile, const std::map<std::string, std::int64_t>& sizes);

}  // namespace attnport::reader
