// Runs any number of items in batches of like length, and puts the results back in the order of the items. The rules
// are those of Python's attnport_bundle/batches.py.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/tensor.hpp>

namespace attnport::reader {

/// Runs a model on more items than one batch should have; see Model::map.
///
/// `run` is that of a model, `only` the one output to return; "" = all. Throws FeedError: the contract does not fit, or
/// inputs have different numbers of items; and what `run` throws.
[[nodiscard]] Outputs map_batches(const std::function<Outputs(const Inputs&)>& run, const IO& io, const Inputs& inputs,
                                  std::int64_t tokens, std::string_view only);

/// A contract of which items have a multiple of 8 places; see Session::wants_eights. The same one where no mask hides the
/// places behind them.
[[nodiscard]] IO in_eights(IO io);

/// The output that is a vector for each item. Throws FeedError: there is none, or there are several.
[[nodiscard]] const TensorSpec& embedding(const IO& io);

/// The output with the scores of each item: `scores`, else `logits`. Throws FeedError: there is none.
[[nodiscard]] const TensorSpec& scoring(const IO& io);

}  // namespace attnport::reader
