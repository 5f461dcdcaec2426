#include "decode/steps.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include <attnport/error.hpp>

#include "format/contract.hpp"
#include "format/text.hpp"
#include "run/arrays.hpp"

namespace attnport::reader {
namespace {

std::size_t product(const Shape& shape, std::size_t begin, std::size_t end) {
    const auto at = [&](std::size_t axis) { return shape.begin() + static_cast<std::ptrdiff_t>(axis); };
    return elements(Shape(at(begin), at(end)));
}

}  // namespace

std::size_t DecoderFacts::batch_axis(const TensorSpec& spec) const {
    return static_cast<std::size_t>(std::find(spec.dims.begin(), spec.dims.end(), ids->dims[0]) - spec.dims.begin());
}

DecoderFacts facts_of(const IO& io) {
    if (!io.decoder) throw FeedError("the model does not generate; of hf:, export it with --with-past.");
    const Decoder& decoder = *io.decoder;
    DecoderFacts facts;
    const auto input = [&](const std::optional<std::string>& name) {
        return name ? find_named(io.inputs, *name) : nullptr;
    };
    facts.ids = input(decoder.ids);
    facts.mask = input(decoder.mask);
    facts.mask_covers_new = facts.mask != nullptr && decoder.mask_covers != "past";
    facts.positions = input(decoder.positions);
    facts.logits = find_named(io.outputs, decoder.logits);
    facts.returns_whole_caches = decoder.returns_whole_caches;
    facts.scores_every_token = facts.logits->dims.size() == 3;
    if (decoder.window) {
        facts.has_window = true;
        facts.window_mask = input(decoder.window->mask);
        facts.places = decoder.window->places;
    }
    std::set<const TensorSpec*> known{facts.ids, facts.mask, facts.positions, facts.window_mask};
    facts.longest_past = std::numeric_limits<std::int32_t>::max();
    for (const DecoderCache& cache : decoder.caches) {
        const TensorSpec* const spec = input(cache.input);
        known.insert(spec);
        facts.caches.push_back({spec, cache.output, cache.axis, cache.holds_window});
        if (!cache.axis) continue;
        const Dim& length = *dim_of(io.dims, spec->dims[*cache.axis]);
        facts.start = length.min;
        if (cache.holds_window) facts.most_places = length.max;
        facts.holds_all = facts.holds_all || !cache.holds_window;
        // Caches of a window that have room for fewer places may let none go.
        if (!cache.holds_window || length.max < facts.places) {
            facts.longest_past = std::min(facts.longest_past, length.max);
        }
    }
    if (facts.positions != nullptr) {
        facts.longest_past = std::min(facts.longest_past, facts.start + *facts.positions->high - 1);
    }
    for (const TensorSpec& spec : io.inputs) {
        if (known.count(&spec) == 0) facts.context.push_back(&spec);
    }
    if (const Dim* const seq = dim_of(io.dims, facts.ids->dims[1])) facts.longest_seq = seq->max;
    return facts;
}

Steps::~Steps() = default;

std::int64_t spare_places(std::int64_t length) { return std::max<std::int64_t>(64, length / 4); }

void Buffers::begin(std::vector<Tensor> caches) {
    held_ = std::move(caches);
    lengths_.clear();
    for (std::size_t at = 0; at < held_.size(); ++at) {
        const auto axis = facts_.caches.at(at).axis;
        lengths_.push_back(axis ? held_[at].shape().at(*axis) : 0);
    }
}

Outputs Buffers::run(Inputs inputs) {
    std::vector<Buffer> buffers;
    for (std::size_t at = 0; at < held_.size(); ++at) {
        Tensor& cache = held_[at];
        const Cached& fact = facts_.caches[at];
        if (!fact.axis) {
            inputs.emplace_back(fact.spec->name, cache.data(), cache.dtype(), cache.shape());
            continue;
        }
        const std::int64_t length = lengths_[at];
        if (cache.shape()[*fact.axis] == length) {
            cache = cut_along(cache, *fact.axis, 0, length, length + spare_places(length));
        }
        Shape filled = cache.shape();
        filled[*fact.axis] = length;
        inputs.emplace_back(fact.spec->name, cache.data(), cache.dtype(), std::move(filled));
        buffers.push_back({fact.spec->name, fact.output, cache});
    }
    Outputs outputs = step_(inputs, buffers);
    for (std::size_t at = 0; at < held_.size(); ++at) {
        const Cached& fact = facts_.caches[at];
        if (fact.axis) {
            ++lengths_[at];
        } else {
            held_[at] = outputs.at(fact.output);
        }
    }
    return outputs;
}

void Buffers::drop(std::int64_t count) {
    for (std::size_t at = 0; at < held_.size(); ++at) {
        const Cached& fact = facts_.caches[at];
        if (!fact.holds_window) continue;
        // In a buffer of the size that it would have anyway, so that none is made at the next token.
        const std::int64_t left = lengths_[at] - count;
        held_[at] = cut_along(held_[at], *fact.axis, count, left, left + spare_places(left));
        lengths_[at] = left;
    }
}

Carried::Carried(StepOnDevice step, const DecoderFacts& facts) : step_(std::move(step)), facts_(facts) {
    for (const Cached& cache : facts.caches) kept_.push_back(cache.output);
}

Outputs Carried::run(Inputs inputs) {
    for (std::size_t at = 0; at < held_.size(); ++at) {
        const Tensor& cache = held_[at];
        inputs.emplace_back(facts_.caches[at].spec->name, cache.data(), cache.dtype(), cache.shape(), cache.place());
    }
    Outputs outputs = step_(inputs, kept_);
    for (std::size_t at = 0; at < held_.size(); ++at) held_[at] = outputs.at(facts_.caches[at].output);
    return outputs;
}

void Carried::drop(std::int64_t /*count*/) { throw Error("caches of a window are not kept on a device."); }

Tensor joined_along(const Tensor& first, const Tensor& second, std::size_t axis) {
    Shape shape = first.shape();
    const std::size_t width = size_bytes(first.dtype());
    const auto block = [&](const Tensor& one) { return product(one.shape(), axis, one.shape().size()) * width; };
    const std::size_t count = product(shape, 0, axis);
    const std::size_t before = block(first);
    const std::size_t behind = block(second);
    shape[axis] += second.shape()[axis];
    std::shared_ptr<std::byte> memory = allocate(count * (before + behind));
    for (std::size_t at = 0; at < count; ++at) {
        std::byte* const out = memory.get() + at * (before + behind);
        const auto copy = [at](std::byte* to, const Tensor& from, std::size_t bytes) {
            if (bytes != 0) std::memcpy(to, static_cast<const std::byte*>(from.data()) + at * bytes, bytes);
        };
        copy(out, first, before);
        copy(out + before, second, behind);
    }
    return {first.name(), first.dtype(), std::move(shape), std::move(memory)};
}

Tensor cut_along(const Tensor& tensor, std::size_t axis, std::int64_t begin, std::int64_t count, std::int64_t places) {
    Shape shape = tensor.shape();
    const std::size_t rows = product(shape, 0, axis);
    const std::size_t place = product(shape, axis + 1, shape.size()) * size_bytes(tensor.dtype());
    const std::size_t had = static_cast<std::size_t>(shape[axis]) * place;
    const std::size_t has = static_cast<std::size_t>(places) * place;
    const std::size_t copied = static_cast<std::size_t>(count) * place;
    shape[axis] = places;
    std::shared_ptr<std::byte> memory = allocate(rows * has);
    const auto* const from = static_cast<const std::byte*>(tensor.data()) + static_cast<std::size_t>(begin) * place;
    for (std::size_t at = 0; at < rows && copied != 0; ++at) {
        std::memcpy(memory.get() + at * has, from + at * had, copied);
    }
    return {tensor.name(), tensor.dtype(), std::move(shape), std::move(memory)};
}

}  // namespace attnport::reader
