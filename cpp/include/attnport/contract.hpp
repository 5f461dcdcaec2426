// The contract of a bundled model: what goes in and out, named dims with their ranges, masks. See FORMAT.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

/// An axis: the name of a dim, or a fixed size; of an output also an expression of dims, such as `past+seq`, or `?` for
/// a size that nothing tells before a call.
using Axis = std::variant<std::string, std::int64_t>;

/// An input or output. `high` bounds an integer input's values, exclusive; `labels` name the places on the last axis.
struct TensorSpec {
    std::string name;
    DType dtype = DType::Float32;
    std::vector<Axis> dims;
    std::optional<std::int64_t> high;
    std::vector<std::string> labels = {};

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

/// A cache of a decoder: what a model keeps of earlier tokens.
struct DecoderCache {
    std::string input;
    std::string output;               ///< what follows it
    std::optional<std::size_t> axis;  ///< where its length is; none = a state, of which one size follows another
    bool holds_window = false;        ///< it holds the last tokens alone, and not all
};

/// What the caches of layers with a sliding window hold.
struct DecoderWindow {
    std::optional<std::string> mask;  ///< the input that says which of their places and of the new tokens are real
    std::int64_t places = 1;          ///< so many places before a new token may be seen; they hold these at least
};

/// What the inputs and outputs of a model that generates are for. All other inputs are the same at every step.
struct Decoder {
    std::string ids;                       ///< the new tokens, [batch, seq]; [batch, 1] = one at a time
    std::optional<std::string> mask;       ///< the input that says which tokens are real
    std::string mask_covers;               ///< the tokens of the mask: all, past or new ones; "" without a mask
    std::optional<std::string> positions;  ///< of the new tokens, [batch, seq]; none = the model counts them itself
    std::string logits;                    ///< the scores of what follows the last token, or each
    std::vector<DecoderCache> caches;
    bool returns_whole_caches = true;      ///< and not only what is to be put behind them
    std::optional<DecoderWindow> window;
    std::vector<std::int64_t> stop;   ///< the token ids behind which a text ends
    std::vector<std::int64_t> start;  ///< behind an encoder, the token ids that a text begins with
    std::vector<std::string> rules;   ///< of its generation config, those beside the scores: only Python keeps to them
};

/// The whole contract.
struct IO {
    std::vector<TensorSpec> inputs;
    std::vector<TensorSpec> outputs;
    std::vector<Dim> dims;
    std::vector<Mask> masks;
    std::optional<Decoder> decoder = {};  ///< none = the model does not generate
};

}  // namespace attnport
