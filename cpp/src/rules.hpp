// The rules of a generation config on the scores of texts that grow, as transformers applies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <attnport/contract.hpp>

namespace attnport::reader {

/// The score of a token that may not follow.
inline constexpr double never = -std::numeric_limits<double>::infinity();

/// What is wrong with a value of the rules, such as `beams: got 0; expected 1 to 1000`; "" = nothing.
[[nodiscard]] std::string wrong_with(const Rules& rules);

/// Rules on the scores of texts that grow.
class Ruled {
public:
    /// `rules` are kept by reference. `stop` are the tokens that end a text, `max_tokens` is the most new ones of it.
    Ruled(const Rules& rules, const std::vector<std::int64_t>& stop, std::int64_t max_tokens);

    /// Changes the scores, or log probabilities, of what follows one text; -inf is what may not follow.
    void apply(double* row, std::size_t words, const std::vector<std::int64_t>& prompt,
               const std::vector<std::int64_t>& added) const;

private:
    [[nodiscard]] std::vector<std::int64_t> completing(const std::vector<std::int64_t>& text) const;

    const Rules& rules_;
    std::vector<std::int64_t> stop_;
    std::vector<std::vector<std::int64_t>> bad_words_;
    std::size_t max_tokens_;
};

}  // namespace attnport::reader
