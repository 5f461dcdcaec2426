#include "steps.hpp"

#include <algorithm>

#include "axes.hpp"

namespace attnport::reader {
namespace {

/// The least places that a buffer has behind its tokens when it is made.
constexpr std::int64_t more_places = 64;

}  // namespace

Steps::~Steps() = default;

void Buffers::begin(std::vector<Tensor> caches) {
    held_ = std::move(caches);
    length_ = held_.at(0).shape().at(roles_.caches.at(0).axis);
}

Outputs Buffers::run(Inputs inputs) {
    std::vector<Buffer> buffers;
    for (std::size_t at = 0; at < held_.size(); ++at) {
        Tensor& cache = held_[at];
        const Cached& role = roles_.caches[at];
        if (cache.shape()[role.axis] == length_) {
            cache = resized_along(cache, role.axis, length_ + std::max<std::int64_t>(more_places, length_ / 4));
        }
        Shape filled = cache.shape();
        filled[role.axis] = length_;
        inputs.emplace_back(role.spec->name, cache.data(), cache.dtype(), std::move(filled));
        buffers.push_back({role.spec->name, role.output, cache});
    }
    Outputs outputs = step_(inputs, buffers);
    ++length_;
    return outputs;
}

void Buffers::take(const std::vector<std::size_t>& texts) { held_ = taken(roles_, held_, texts); }

std::vector<Tensor> taken(const Roles& roles, const std::vector<Tensor>& caches,
                          const std::vector<std::size_t>& texts) {
    std::vector<Tensor> found;
    for (std::size_t at = 0; at < caches.size(); ++at) {
        found.push_back(taken_along(caches[at], texts, roles.batch_axis(*roles.caches[at].spec)));
    }
    return found;
}

}  // namespace attnport::reader
