// The contract of a bundled model: what goes in and out, named dims with their ranges, masks. See FORMAT.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <attnport/tensor.hpp>

namespace attnport {

/// A named dimension: the model takes sizes from `min` to `max` that are multiples of `step`.
struct Dim {
    std::string name;
    std::int64_t min = 1;
    std::int64_t opt = 1;
    std::int64_t max = 1;
    std::int64_t step = 1;
};

/// An axis: the name of a dim, or a fixed size; of an output also an expression of dims, such as `past+seq`.
using Axis = std::variant<std::string, std::int64_t>;

/// An input or output. `high` bounds an integer input's values, exclusive.
struct TensorSpec {
    std::string name;
    DType dtype = DType::Float32;
    std::vector<Axis> dims;
    std::optional<std::int64_t> high;

    /// Such as `input_ids=int64[batch,seq]`.
    [[nodiscard]] ATTNPORT_API std::string text() const;
};

/// What a mask means.
struct Mask {
    std::vector<std::string> kinds;    ///< none, padding, causal, window, prefix, documents, global, bias, explicit
    std::optional<std::string> input;  ///< the input that carries it
    std::string polarity;              ///< of a `mask`: keep (nonzero may be attended), hide, additive
    std::string alignment;             ///< upper_left or lower_right
    std::int64_t window = 0;
    std::string carries;               ///< mask, lengths, ids or marks
    std::optional<std::string> keys;   ///< the dim whose positions `lengths` count

    [[nodiscard]] ATTNPORT_API bool has(std::string_view kind) const;
};

/// How a decoder's tokens are chosen unless a call says otherwise; as it is made here, by the scores alone. In brackets,
/// the name in transformers.
struct Rules {
    /// Tokens that never follow [suppress_tokens].
    std::vector<std::int64_t> suppress = {};
    /// Tokens that are not the first new one [begin_suppress_tokens]; behind `forced_first`, not the second.
    std::vector<std::int64_t> suppress_first = {};
    /// Sequences of tokens that are never completed, except for a single end [bad_words_ids].
    std::vector<std::vector<std::int64_t>> bad_words = {};
    /// What follows a single token, if any are named [forced_bos_token_id].
    std::vector<std::int64_t> forced_first = {};
    /// What the last of `max_tokens` is, if any are named [forced_eos_token_id].
    std::vector<std::int64_t> forced_last = {};
    std::int64_t min_length = 0;    ///< a text of fewer tokens, with its prompt, does not end
    std::int64_t min_tokens = 0;    ///< a text of fewer new tokens does not end [min_new_tokens]
    double repetition_penalty = 1;  ///< divides positive scores of tokens that a text has, and multiplies negative ones
    /// So many tokens in a row are in a text, with its prompt, once; 0 = any number of times [no_repeat_ngram_size].
    std::int64_t no_repeat_ngram = 0;
    std::int64_t beams = 1;         ///< more than 1: beam search [num_beams]
    double length_penalty = 1;      ///< of beams: a text's log probability is divided by its length to this power
    bool early_stopping = false;    ///< beam search is over with as many texts as beams, also if a better one may follow
    bool renormalize = false;       ///< of beams: probabilities are those of what the other rules leave
};

/// What the layers of a decoder that have a sliding window keep of the past.
struct Window {
    std::string dim;                       ///< the length of their caches
    std::int64_t places = 1;               ///< so many places before a new token may be seen; they hold these at least
    std::optional<std::string> positions;  ///< the input of the new tokens' positions; none = the model counts them
};

/// The whole contract.
struct IO {
    std::vector<TensorSpec> inputs;
    std::vector<TensorSpec> outputs;
    std::vector<Dim> dims;
    std::vector<Mask> masks;
    std::vector<std::int64_t> stop;   ///< of a decoder, the token ids behind which a text ends
    std::vector<std::int64_t> start;  ///< of a decoder behind an encoder, the token ids that a text begins with
    Rules rules = {};                 ///< of a decoder, how its tokens are chosen
    std::optional<Window> window = {};  ///< of a decoder with caches that need not hold all tokens, what they hold
};

}  // namespace attnport
