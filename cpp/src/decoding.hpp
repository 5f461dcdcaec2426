// A batch of texts that grow, with their cache and a mask of the real tokens in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/tensor.hpp>

#include "roles.hpp"
#include "steps.hpp"

namespace attnport::reader {

/// Runs the model: every input by name in, every output out.
using Run = std::function<Outputs(const Inputs&)>;

/// The scores of what follows the last token of every text.
struct Logits {
    std::size_t words = 0;
    std::vector<double> scores;  ///< [texts, words]

    [[nodiscard]] const double* row(std::size_t text) const { return scores.data() + text * words; }
    [[nodiscard]] double* row(std::size_t text) { return scores.data() + text * words; }
};

/// The texts and their cache.
class Decoding {
public:
    /// Begins; `io` and `roles` are kept by reference. Where `make_steps` makes none, caches are copied at every step.
    ///
    /// `context`: the inputs that are the same at every step. Throws FeedError where they are not those of `roles`.
    Decoding(Run run, const IO& io, const Roles& roles, MakeSteps make_steps, Inputs context);

    /// Runs new tokens, as many for every text, and adds their keys and values to the cache. Once one token was run
    /// behind others, only single ones may follow.
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
    /// Lets places go that no new token sees, of the caches that hold the last ones alone.
    void drop();
    /// The mask of these caches, and the new tokens' positions, where the model takes them.
    void add_last(const std::vector<std::vector<bool>>& whole, std::size_t added, std::vector<Tensor>& given) const;
    [[nodiscard]] Outputs passed(Inputs inputs);
    /// What runs single tokens, made with the first of them; null where none does.
    [[nodiscard]] Steps* steps();
    [[nodiscard]] Logits last(const Outputs& outputs, std::size_t batch) const;

    Run run_;
    MakeSteps make_steps_;          ///< none once it was asked
    std::unique_ptr<Steps> steps_;  ///< they have the caches
    const IO& io_;
    const Roles& roles_;
    Inputs context_;
    std::vector<Tensor> repeated_;  ///< what `context_` views where it is no longer as it was given
    std::vector<Tensor> caches_;    ///< until there are `steps_`
    std::vector<std::vector<bool>> keep_;  ///< by text, of every place before the new tokens
    std::int64_t kept_ = 0;                ///< the places of the caches that hold the last ones alone
};

}  // namespace attnport::reader
