// A batch of texts that grow, with their cache and a mask of the real tokens in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/tensor.hpp>

#include "roles.hpp"

namespace attnport::reader {

/// Runs the model: every input by name in, every output out.
using Run = std::function<Outputs(const Inputs&)>;

/// A cache that a step writes to: the input and the output that follows it, and the memory that is both. It has more
/// places than tokens.
struct Buffer {
    std::string input;
    std::string output;
    Tensor memory;
};

/// Runs one new token of every text with caches that the model writes to; gives the other outputs. In the inputs, the
/// caches have as many places as tokens.
using StepInPlace = std::function<Outputs(const Inputs&, const std::vector<Buffer>&)>;

/// The scores of what follows the last token of every text.
struct Logits {
    std::size_t words = 0;
    std::vector<double> scores;  ///< [texts, words]

    [[nodiscard]] const double* row(std::size_t text) const { return scores.data() + text * words; }
    [[nodiscard]] double* row(std::size_t text) { return scores.data() + text * words; }
};

/// The texts and their cache. A cache may be a buffer with more places than tokens; what is behind them has no meaning.
class Decoding {
public:
    /// Begins; `io` and `roles` are kept by reference. Without a `step`, caches are copied at every step.
    ///
    /// `context`: the inputs that are the same at every step. Throws FeedError where they are not those of `roles`.
    Decoding(Run run, const IO& io, const Roles& roles, StepInPlace step, Inputs context);

    /// Runs new tokens, as many for every text, and adds their keys and values to the cache.
    ///
    /// `keep` says which are real, and not padding at the left.
    Logits push(const std::vector<std::vector<std::int64_t>>& ids, const std::vector<std::vector<bool>>& keep);

    /// Goes on with these texts of the batch, of which one may be there several times. Where they are as many as before,
    /// each has to have the context of the text that it replaces.
    void take(const std::vector<std::size_t>& texts);

private:
    void begin(std::size_t batch);
    void repeat_context(const std::vector<std::size_t>& texts);
    void follow(const Outputs& outputs);
    [[nodiscard]] Outputs stepped(Inputs inputs);
    [[nodiscard]] Logits last(const Outputs& outputs, std::size_t batch) const;

    Run run_;
    StepInPlace step_;
    const IO& io_;
    const Roles& roles_;
    Inputs context_;
    std::vector<Tensor> repeated_;  ///< what `context_` views where it is no longer as it was given
    std::vector<Tensor> caches_;
    std::vector<std::vector<bool>> keep_;  ///< by text, of every place of the cache
};

}  // namespace attnport::reader
