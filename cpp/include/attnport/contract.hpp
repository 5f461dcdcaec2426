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

/// The whole contract.
struct IO {
    std::vector<TensorSpec> inputs;
    std::vector<TensorSpec> outputs;
    std::vector<Dim> dims;
    std::vector<Mask> masks;
    std::vector<std::int64_t> stop;   ///< of a decoder, the token ids behind which a text ends
    std::vector<std::int64_t> start;  ///< of a decoder behind an encoder, the token ids that a text begins with
};

}  // namespace attnport
