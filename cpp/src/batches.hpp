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

#include "memory_limit.hpp"

namespace attnport::reader {

/// Texts that are tokenised and sorted together.
inline constexpr std::size_t window = 1024;

/// Runs a model on more items than one batch should have; see Model::map.
///
/// `run` is that of a model, `only` the one output to return; "" = all. Throws FeedError: the contract does not fit,
/// inputs have different numbers of items, or there is too little memory; and what `run` throws.
[[nodiscard]] Outputs mapped(const std::function<Outputs(const Inputs&)>& run, const IO& io, const Inputs& inputs,
                             std::int64_t tokens, std::string_view only, MemoryLimit& memory);

/// The output that is a vector for each item. Throws FeedError: there is none, or there are several.
[[nodiscard]] const TensorSpec& embedding(const IO& io);

}  // namespace attnport::reader
