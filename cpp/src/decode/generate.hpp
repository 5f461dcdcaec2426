// Generates tokens one after another with a decoder and its cache: the likeliest, or drawn ones.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <attnport/model.hpp>

#include "decode/steps.hpp"

namespace attnport::reader {

/// Runs the model: every input by name in, every output out.
using Run = std::function<Outputs(const Inputs&)>;

/// The new tokens of every prompt. Throws FeedError: the model does not generate, or not from these prompts.
///
/// `make_steps`: of a runtime that may keep the caches.
[[nodiscard]] std::vector<std::vector<std::int64_t>> generate(const Run& run, const MakeSteps& make_steps, const IO& io,
                                                              const std::vector<std::vector<std::int64_t>>& prompts,
                                                              const GenerateOptions& options);

}  // namespace attnport::reader
