// Which optimization profile of an engine takes the shapes of a call.
#pragma once

#include <cstddef>
#include <vector>

#include "session.hpp"

namespace attnport::reader {

/// The profile that admits every shape; of several the one that ends soonest, as it was tuned closest. `shapes` and the
/// ranges of each profile stand in the order of `inputs`. Throws FeedError: none does; names an input, its shape and
/// the ranges.
[[nodiscard]] std::size_t choose_profile(const std::vector<std::vector<Range>>& profiles,
                                         const std::vector<Port>& inputs, const std::vector<Shape>& shapes);

}  // namespace attnport::reader
