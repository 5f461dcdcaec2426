// What a decoder's inputs and outputs are for, looked up once; and the caches of a batch, added to from token to token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/tensor.hpp>

namespace attnport::reader {

/// A cache, or a state, with its input.
struct Cached {
    const TensorSpec* spec;
    std::string output;
    std::optional<std::size_t> axis;
    bool holds_window;
};

/// The key `io.decoder`, with pointers into the contract in place of names.
struct DecoderFacts {
    const TensorSpec* ids = nullptr;
    const TensorSpec* mask = nullptr;  ///< null: the model takes none
    const TensorSpec* window_mask = nullptr;
    const TensorSpec* positions = nullptr;
    const TensorSpec* logits = nullptr;
    bool scores_every_token = false;
    bool returns_whole_caches = true;
    std::vector<Cached> caches;
    std::vector<const TensorSpec*> context;  ///< the other inputs, which are the same at every step
    bool mask_covers_new = false;
    bool has_window = false;        ///< some cache holds the last tokens alone
    bool holds_all = false;         ///< some cache holds every token
    std::int64_t places = 0;        ///< how many places the caches of a window hold at least
    std::int64_t most_places = 0;   ///< and at most
    std::int64_t start = 0;         ///< how many empty places a cache begins with
    std::int64_t longest_past = 0;  ///< the most places before the new tokens
    std::int64_t longest_seq = 1;   ///< the most new tokens of a pass

    /// The axis of a tensor that has a row for each text; its rank, where it has none.
    [[nodiscard]] std::size_t batch_axis(const TensorSpec& spec) const;
};

/// Throws FeedError: the model does not generate.
[[nodiscard]] DecoderFacts facts_of(const IO& io);

/// Caches of one batch that a runtime adds to, so that no token copies them.
class Steps {
public:
    Steps() = default;
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;
    virtual ~Steps();

    /// Takes caches, in the order of the decoder's; comes first.
    virtual void begin(std::vector<Tensor> caches) = 0;

    /// Runs one new token of every text; gives at least the scores. `inputs` are all but the caches.
    virtual Outputs run(Inputs inputs) = 0;

    /// Lets the first places of the caches of a window go.
    virtual void drop(std::int64_t count) = 0;
};

/// Makes the caches of one batch, which keeps the facts by reference; null if the runtime cannot keep them.
using MakeSteps = std::function<std::unique_ptr<Steps>(const DecoderFacts&)>;

/// A cache that a step writes to: the input, the output that follows it, and the memory of both, with spare room.
struct Buffer {
    std::string input;
    std::string output;
    Tensor memory;
};

/// Runs one new token of every text with caches that the model writes to; gives the other outputs. In the inputs, the
/// caches have as many places as tokens.
using StepInPlace = std::function<Outputs(const Inputs&, const std::vector<Buffer>&)>;

/// `Steps` of a model that writes to its caches: each is a buffer with spare room; what lies behind the last token is
/// garbage. States are given and taken at every step.
class Buffers final : public Steps {
public:
    Buffers(StepInPlace step, const DecoderFacts& facts) : step_(std::move(step)), facts_(facts) {}

    void begin(std::vector<Tensor> caches) override;
    Outputs run(Inputs inputs) override;
    void drop(std::int64_t count) override;

private:
    StepInPlace step_;
    const DecoderFacts& facts_;
    std::vector<Tensor> held_;
    std::vector<std::int64_t> lengths_;  ///< how many places of each are filled; 0 of a state
};

/// Runs new tokens of every text; the outputs that are named stay on the device, where inputs may lie too.
using StepOnDevice = std::function<Outputs(const Inputs&, const std::vector<std::string>& kept)>;

/// `Steps` of a model on a device, whose outputs for caches are whole ones without a window: what it gives for a cache stays
/// there, and is what it takes at the next step. Caches pass through the host once, at the first step.
class Carried final : public Steps {
public:
    Carried(StepOnDevice step, const DecoderFacts& facts);

    void begin(std::vector<Tensor> caches) override { held_ = std::move(caches); }
    Outputs run(Inputs inputs) override;
    void drop(std::int64_t count) override;

private:
    StepOnDevice step_;
    const DecoderFacts& facts_;
    std::vector<std::string> kept_;
    std::vector<Tensor> held_;
};

/// How many places are added at once behind so many, so that they are copied once in as many steps.
[[nodiscard]] std::int64_t spare_places(std::int64_t length);

/// Two tensors behind each other along an axis; they differ in nothing else.
[[nodiscard]] Tensor joined_along(const Tensor& first, const Tensor& second, std::size_t axis);

/// `count` places of a tensor along an axis, from `begin` on, in a tensor that has `places` there; others are zero.
[[nodiscard]] Tensor cut_along(const Tensor& tensor, std::size_t axis, std::int64_t begin, std::int64_t count,
                               std::int64_t places);

}  // namespace attnport::reader
