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
    const auto cache = std::find_if(roles_.caches.begin(), roles_.caches.end(), [](const Cached& one) { return one.axis; });
    length_ = held_.at(static_cast<std::size_t>(cache - roles_.caches.begin())).shape().at(*cache->axis);
}

Outputs Buffers::run(Inputs inputs) {
    std::vector<Buffer> buffers;
    for (std::size_t at = 0; at < held_.size(); ++at) {
        Tensor& cache = held_[at];
        const Cached& role = roles_.caches[at];
        if (!role.axis) {
            inputs.emplace_back(role.spec->name, cache.data(), cache.dtype(), cache.shape());
            continue;
        }
        if (cache.shape()[*role.axis] == length_) {
            cache = resized_along(cache, *role.axis, length_ + std::max<std::int64_t>(more_places, length_ / 4));
        }
        Shape filled = cache.shape();
        filled[*role.axis] = length_;
        inputs.emplace_back(role.spec->name, cache.data(), cache.dtype(), std::move(filled));
        buffers.push_back({role.spec->name, role.output, cache});
    }
    Outputs outputs = step_(inputs, buffers);
    for (std::size_t at = 0; at < held_.size(); ++at) {
        if (!roles_.caches[at].axis) held_[at] = outputs.at(roles_.caches[at].output);
    }
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
