// Keeps the resident memory of the process within a limit, by the size of the batches that a model is given. The rule
// is that of Python's attnport_bundle/memory.py.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <attnport/tensor.hpp>

namespace attnport::reader {

/// Resident memory of this process, in bytes: now, and at most so far.
struct Used {
    std::int64_t now = 0;
    std::int64_t peak = 0;
};

/// Throws FeedError: the system does not tell it; Linux does.
[[nodiscard]] Used used();

/// What is known of a model that is open.
struct Learned {
    std::int64_t length = 0;   ///< the longest item that ran
    std::int64_t places = 0;   ///< of the largest batch since an item of that length ran
    double rate = 0.0;         ///< the bytes that one more place took, without outputs
    double output_rate = 0.0;  ///< the bytes of the outputs of a place
};

class MemoryLimit {
public:
    /// `limit`: bytes; none = no limit, and nothing is measured. `learned` is brought up to date. `give_back` is as of
    /// a Session. Throws FeedError for a limit below one byte.
    MemoryLimit(std::optional<std::int64_t> limit, Learned& learned, std::function<bool()> give_back,
                std::function<Used()> measure = used);

    /// The most places of a batch whose longest item has `length`; 0 = that item alone. At most twice as many as ran
    /// before, so that what they take is measured before there are many. No fewer than the longest item that ran:
    /// shorter ones take no more than that did.
    [[nodiscard]] std::int64_t places(std::int64_t length, std::int64_t tokens);

    /// The lengths at which an item of `length` is tried first, cut: each twice the one before.
    [[nodiscard]] std::vector<std::int64_t> steps(std::int64_t length) const;

    /// Runs a batch and learns from it. Throws FeedError: the limit is exceeded, or would be as far as is known.
    [[nodiscard]] Outputs run(std::int64_t places, std::int64_t length, const std::function<Outputs()>& call);

    /// Throws FeedError if there is no room for so many bytes more.
    void require(std::int64_t bytes, const std::string& what) const;

private:
    [[nodiscard]] std::int64_t held(std::int64_t aim);

    std::optional<std::int64_t> limit_;
    Learned& learned_;
    std::function<bool()> give_back_;
    std::function<Used()> measure_;
};

}  // namespace attnport::reader
