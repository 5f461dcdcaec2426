// Generates tokens one after another with a decoder and its cache: greedily, by drawing, or by beam search.
#pragma once

#include <cstdint>
#include <vector>

#include <attnport/model.hpp>

#include "decoding.hpp"

namespace attnport::reader {

/// The new tokens of every prompt. Throws FeedError: the model does not generate, or not from these prompts.
///
/// `make_steps`: of a runtime that may keep the caches.
[[nodiscard]] std::vector<std::vector<std::int64_t>> generated(const Run& run, const MakeSteps& make_steps, const IO& io,
                                                               const std::vector<std::vector<std::int64_t>>& prompts,
                                                               const GenerateOptions& options);

}  // namespace attnport::reader
