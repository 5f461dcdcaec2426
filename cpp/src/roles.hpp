// What each input and output of a decoder with a cache is for, read from its contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <attnport/contract.hpp>

namespace attnport::reader {

/// A cache: an input with a length of its own, the output that follows it, and the axis of its length. A state, of which
/// one size follows another, has no such axis.
struct Cached {
    const TensorSpec* spec;
    std::string output;
    std::optional<std::size_t> axis;
};

/// The caches that hold the last places alone, those of layers with a sliding window.
struct Kept {
    const TensorSpec* mask = nullptr;  ///< which of these places and of the new tokens are real, [batch, kept+seq]
    std::string dim;                   ///< of the caches' length
    std::int64_t places = 0;           ///< how many they hold at least, where there are as many
    std::int64_t most = 0;             ///< how many they hold at most
};

/// The inputs and outputs of a decoder. The pointers are into the contract.
struct Roles {
    const TensorSpec* ids = nullptr;     ///< the new tokens, [batch, seq]; [batch, 1] = one at a time
    const TensorSpec* mask = nullptr;    ///< which tokens are real; none = all
    bool whole = true;                   ///< the mask is not of the cache alone
    std::vector<Cached> caches;          ///< caches, then states
    bool grows = true;                   ///< there is a cache; otherwise a whole mask is of the new tokens
    bool grown = true;                   ///< the outputs are whole caches, and not what is to be put behind them
    std::vector<const TensorSpec*> context;  ///< the other inputs, which are the same at every step
    const TensorSpec* logits = nullptr;  ///< the scores of what follows
    bool each = false;                   ///< of every new token, [batch, seq, vocabulary], and not of the last
    std::int64_t start = 0;              ///< how many empty places a cache begins with
    std::int64_t longest_seq = 1;        ///< the most new tokens of a pass
    std::int64_t longest_past = 1;       ///< the most places before the new tokens
    std::optional<Kept> kept;            ///< the caches that hold the last places alone; none = all hold all
    const TensorSpec* positions = nullptr;   ///< of the new tokens, [batch, seq]; none = the model counts them itself

    /// The axis of a tensor that has a row for each text; its rank, where it has none.
    [[nodiscard]] std::size_t batch_axis(const TensorSpec& spec) const;

    /// Whether a cache holds the last places alone.
    [[nodiscard]] bool holds_last(const Cached& cache) const;
};

/// Throws FeedError: the model does not generate, with the reason.
[[nodiscard]] Roles roles_of(const IO& io);

}  // namespace attnport::reader
