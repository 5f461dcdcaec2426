// The caches of a batch of texts, kept from token to token and added to, so that no token copies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <attnport/tensor.hpp>

#include "roles.hpp"

namespace attnport::reader {

/// Caches that a runtime adds to.
class Steps {
public:
    Steps() = default;
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;
    virtual ~Steps();

    /// Takes caches, in the order of the roles; comes first.
    virtual void begin(std::vector<Tensor> caches) = 0;

    /// Runs one new token of every text; gives at least the scores. `inputs` are all but the caches.
    virtual Outputs run(Inputs inputs) = 0;

    /// Goes on with these texts of the batch, of which one may be there several times.
    virtual void take(const std::vector<std::size_t>& texts) = 0;

    /// Lets the first places go, of the caches that hold the last ones alone.
    virtual void drop(std::int64_t count) = 0;
};

/// Makes the caches of one batch, which keeps the roles by reference; none of a model whose caches the runtime cannot
/// keep.
using MakeSteps = std::function<std::unique_ptr<Steps>(const Roles&)>;

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

/// `Steps` of a model that writes to its caches: each is a buffer with more places than tokens; what is behind them has
/// no meaning. States are given and taken at every step.
class Buffers final : public Steps {
public:
    Buffers(StepInPlace step, const Roles& roles) : step_(std::move(step)), roles_(roles) {}

    void begin(std::vector<Tensor> caches) override;
    Outputs run(Inputs inputs) override;
    void take(const std::vector<std::size_t>& texts) override;
    void drop(std::int64_t count) override;

private:
    StepInPlace step_;
    const Roles& roles_;
    std::vector<Tensor> held_;
    std::vector<std::int64_t> lengths_;  ///< how many places of each are filled; 0 of a state
};

/// How many places are added at once behind so many, so that they are copied once in as many steps.
[[nodiscard]] std::int64_t more_places(std::int64_t length);

/// These texts of caches, which are in the order of the roles.
[[nodiscard]] std::vector<Tensor> taken(const Roles& roles, const std::vector<Tensor>& caches,
                                        const std::vector<std::size_t>& texts);

}  // namespace attnport::reader
