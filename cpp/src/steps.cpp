#include "steps.hpp"

#include <algorithm>

#include "axes.hpp"

namespace attnport::reader {

Steps::~Steps() = default;

std::int64_t more_places(std::int64_t length) { return std::max<std::int64_t>(64, length / 4); }

void Buffers::begin(std::vector<Tensor> caches) {
    held_ = std::move(caches);
    lengths_.clear();
    for (std::size_t at = 0; at < held_.size(); ++at) {
        const auto axis = roles_.caches.at(at).axis;
        lengths_.push_back(axis ? held_[at].shape().at(*axis) : 0);
    }
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
        const std::int64_t length = lengths_[at];
        if (cache.shape()[*role.axis] == length) {
            cache = resized_along(cache, *role.axis, length + more_places(length));
        }
        Shape filled = cache.shape();
        filled[*role.axis] = length;
        inputs.emplace_back(role.spec->name, cache.data(), cache.dtype(), std::move(filled));
        buffers.push_back({role.spec->name, role.output, cache});
    }
    Outputs outputs = step_(inputs, buffers);
    for (std::size_t at = 0; at < held_.size(); ++at) {
        const Cached& role = roles_.caches[at];
        if (role.axis) {
            ++lengths_[at];
        } else {
            held_[at] = outputs.at(role.output);
        }
    }
    return outputs;
}

void Buffers::drop(std::int64_t count) {
    for (std::size_t at = 0; at < held_.size(); ++at) {
        const Cached& role = roles_.caches[at];
        if (!roles_.holds_last(role)) continue;
        // In a buffer of the size that it would have anyway, so that none is made at the next token.
        const std::int64_t left = lengths_[at] - count;
        held_[at] = cut_along(held_[at], *role.axis, count, left, left + more_places(left));
        lengths_[at] = left;
    }
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
