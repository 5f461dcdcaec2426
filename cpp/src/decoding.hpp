// A batch of texts that grow, with their cache and a mask of the real tokens in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/tensor.hpp>

#include "roles.hpp"

namespace attnport::reader {

/// Runs the model: every input by name in, every output out.
using Run = std::function<Outputs(const Inputs&)>;

/// The scores of what follows the last token of every text.
struct Logits {
    std::size_t words = 0;
    std::vector<double> scores;  ///< [texts, words]

    [[nodiscard]] const double* row(std::size_t text) const { return scores.data() + text * words; }
};

/// The texts and their cache.
class Decoding {
public:
    /// Begins; `io` and `roles` are kept by reference.
    Decoding(Run run, const IO& io, const Roles& roles) : run_(std::move(run)), io_(io), roles_(roles) {}

    /// Runs new tokens, as many for every text, and adds their keys and values to the cache.
    ///
    /// `keep` says which are real, and not padding at the left.
    Logits push(const std::vector<std::vector<std::int64_t>>& ids, const std::vector<std::vector<bool>>& keep);

    /// Goes on with these texts of the batch, of which one may be there several times.
    void take(const std::vector<std::size_t>& texts);

private:
    void begin(std::size_t batch);
    void follow(const Outputs& outputs);
    [[nodiscard]] Logits last(const Outputs& outputs, std::size_t batch) const;

    Run run_;
    const IO& io_;
    const Roles& roles_;
    std::vector<Tensor> caches_;
    std::vector<std::vector<bool>> keep_;  ///< by text, of every place of the cache
};

}  // namespace attnport::reader
