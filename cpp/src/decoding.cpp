#include "decoding.hpp"

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include <attnport/error.hpp>

#include "axes.hpp"
#include "halves.hpp"
#include "memory.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

template <class T> void fill(std::byte* memory, const std::vector<std::int64_t>& values) {
    auto* const out = reinterpret_cast<T*>(memory);
    std::transform(values.begin(), values.end(), out, [](std::int64_t value) { return static_cast<T>(value); });
}

/// Whole numbers as a tensor of an input's dtype.
Tensor tensor_of(const TensorSpec& spec, const Shape& shape, const std::vector<std::int64_t>& values) {
    std::shared_ptr<std::byte> memory = allocate(values.size() * size_bytes(spec.dtype));
    switch (spec.dtype) {
        case DType::Int64: fill<std::int64_t>(memory.get(), values); break;
        case DType::Int32: fill<std::int32_t>(memory.get(), values); break;
        case DType::Bool: fill<bool>(memory.get(), values); break;
        case DType::Float32: fill<float>(memory.get(), values); break;
        case DType::Float64: fill<double>(memory.get(), values); break;
        default: throw FeedError("the model does not generate: there is no rule for " + spec.text() + ".");
    }
    return {spec.name, spec.dtype, shape, std::move(memory)};
}

/// The size of an axis of a cache at its beginning.
std::int64_t first_size(const IO& io, const Axis& axis, const Axis& batch, std::size_t texts) {
    if (axis == batch) return static_cast<std::int64_t>(texts);
    if (const auto* const number = std::get_if<std::int64_t>(&axis)) return *number;
    const auto& name = std::get<std::string>(axis);
    const auto dim = std::find_if(io.dims.begin(), io.dims.end(), [&](const Dim& one) { return one.name == name; });
    if (dim == io.dims.end()) throw FeedError("the model does not generate: a cache has the size " + name + ".");
    return dim->min;
}

Shape shape_of(const std::vector<std::vector<bool>>& rows) {
    return {static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(rows.at(0).size())};
}

std::vector<std::int64_t> numbers(const std::vector<std::vector<bool>>& rows) {
    std::vector<std::int64_t> found;
    for (const auto& row : rows) found.insert(found.end(), row.begin(), row.end());
    return found;
}

}  // namespace

Decoding::Decoding(Run run, const IO& io, const Roles& roles, MakeSteps make_steps, Inputs context)
    : run_(std::move(run)), make_steps_(std::move(make_steps)), io_(io), roles_(roles), context_(std::move(context)) {
    std::vector<std::string> expected;
    std::vector<std::string> got;
    for (const TensorSpec* const spec : roles.context) expected.push_back(spec->name);
    for (const Input& input : context_) got.emplace_back(input.name());
    std::vector<std::string> wanted = expected;
    std::sort(wanted.begin(), wanted.end());
    std::sort(got.begin(), got.end());
    if (wanted == got) return;
    for (std::string& name : got) name = shown(name);
    const std::string given = got.empty() ? "nothing" : joined(got);
    const std::string taken =
        expected.empty() ? "nothing" : joined(expected) + ", the same at every step: what an encoder gives";
    throw FeedError("context: got " + given + "; expected " + taken + ".");
}

void Decoding::begin(std::size_t batch) {
    keep_.assign(batch, std::vector<bool>(static_cast<std::size_t>(roles_.start), false));
    kept_ = roles_.start;
    for (const Cached& cache : roles_.caches) {
        Shape shape;
        for (const Axis& axis : cache.spec->dims) shape.push_back(first_size(io_, axis, roles_.ids->dims[0], batch));
        std::shared_ptr<std::byte> memory = allocate(elements(shape) * size_bytes(cache.spec->dtype));
        caches_.emplace_back(cache.spec->name, cache.spec->dtype, std::move(shape), std::move(memory));
    }
}

Logits Decoding::push(const std::vector<std::vector<std::int64_t>>& ids, const std::vector<std::vector<bool>>& keep) {
    const std::size_t batch = ids.size();
    if (keep_.empty()) begin(batch);
    drop();
    std::vector<std::vector<bool>> whole = keep_;
    std::vector<std::int64_t> tokens;
    for (std::size_t text = 0; text < batch; ++text) {
        whole[text].insert(whole[text].end(), keep[text].begin(), keep[text].end());
        tokens.insert(tokens.end(), ids[text].begin(), ids[text].end());
    }
    std::vector<Tensor> given{tensor_of(*roles_.ids, shape_of(keep), tokens)};
    if (roles_.mask != nullptr && !(roles_.kept && roles_.kept->mask == roles_.mask)) {
        const auto& all = roles_.grows ? whole : keep;
        const auto& real = roles_.whole ? all : keep_;
        given.push_back(tensor_of(*roles_.mask, shape_of(real), numbers(real)));
    }
    const std::size_t added = ids[0].size();
    add_last(whole, added, given);
    Inputs inputs(given.begin(), given.end());
    inputs.insert(inputs.end(), context_.begin(), context_.end());
    Steps* const kept = added == 1 && !keep_[0].empty() ? steps() : nullptr;
    const Outputs outputs = kept != nullptr ? kept->run(std::move(inputs)) : passed(std::move(inputs));
    keep_ = std::move(whole);
    kept_ += static_cast<std::int64_t>(added);
    return last(outputs, batch);
}

void Decoding::add_last(const std::vector<std::vector<bool>>& whole, std::size_t added,
                        std::vector<Tensor>& given) const {
    if (roles_.kept) {
        const auto seen = static_cast<std::ptrdiff_t>(kept_) + static_cast<std::ptrdiff_t>(added);
        std::vector<std::vector<bool>> near;
        near.reserve(whole.size());
        for (const auto& row : whole) near.emplace_back(row.end() - seen, row.end());
        given.push_back(tensor_of(*roles_.kept->mask, shape_of(near), numbers(near)));
    }
    if (roles_.positions == nullptr) return;
    std::vector<std::int64_t> positions;
    for (const auto& row : whole) {
        auto real = static_cast<std::int64_t>(std::count(row.begin(), row.end() - static_cast<std::ptrdiff_t>(added), true));
        for (std::size_t at = row.size() - added; at < row.size(); ++at) {
            real += row[at] ? 1 : 0;
            positions.push_back(std::max<std::int64_t>(real - 1, 0));
        }
    }
    const Shape shape{static_cast<std::int64_t>(whole.size()), static_cast<std::int64_t>(added)};
    given.push_back(tensor_of(*roles_.positions, shape, positions));
}

void Decoding::drop() {
    if (!roles_.kept) return;
    const std::int64_t places = roles_.kept->places;
    // Where nothing else copies a cache, its places are moved once in many steps.
    const std::int64_t spare = steps_ == nullptr ? 1 : std::min(more_places(places), roles_.kept->most - places);
    const std::int64_t count = kept_ - places;
    if (count < std::max<std::int64_t>(1, spare)) return;
    kept_ = places;
    if (steps_ != nullptr) {
        steps_->drop(count);
        return;
    }
    for (std::size_t at = 0; at < caches_.size(); ++at) {
        const Cached& cache = roles_.caches[at];
        if (roles_.holds_last(cache)) caches_[at] = cut_along(caches_[at], *cache.axis, count, places, places);
    }
}

Steps* Decoding::steps() {
    if (const MakeSteps make = std::exchange(make_steps_, nullptr)) {
        steps_ = make(roles_);
        if (steps_ != nullptr) steps_->begin(std::exchange(caches_, {}));
    }
    return steps_.get();
}

Outputs Decoding::passed(Inputs inputs) {
    for (std::size_t at = 0; at < caches_.size(); ++at) {
        const Tensor& cache = caches_[at];
        inputs.emplace_back(roles_.caches[at].spec->name, cache.data(), cache.dtype(), cache.shape());
    }
    Outputs outputs = run_(inputs);
    follow(outputs);
    return outputs;
}

void Decoding::follow(const Outputs& outputs) {
    for (std::size_t at = 0; at < caches_.size(); ++at) {
        const Cached& cache = roles_.caches[at];
        const Tensor& found = cast(outputs.at(cache.output), cache.spec->dtype);
        caches_[at] = roles_.grown || !cache.axis ? found : joined_along(caches_[at], found, *cache.axis);
    }
}

Logits Decoding::last(const Outputs& outputs, std::size_t batch) const {
    const Tensor& found = outputs.at(roles_.logits->name);
    Logits logits;
    logits.words = static_cast<std::size_t>(found.shape().back());
    logits.scores.resize(batch * logits.words);
    const std::size_t rows = roles_.each ? static_cast<std::size_t>(found.shape()[1]) : 1;
    const std::size_t width = size_bytes(found.dtype());
    const auto* const from = static_cast<const std::byte*>(found.data());
    for (std::size_t text = 0; text < batch; ++text) {
        const std::byte* const row = from + (text * rows + rows - 1) * logits.words * width;
        to_double(row, found.dtype(), logits.words, logits.scores.data() + text * logits.words);
    }
    return logits;
}

void Decoding::repeat_context(const std::vector<std::size_t>& texts) {
    std::vector<Tensor> repeated;
    Inputs kept;
    for (const Input& input : context_) {
        const auto spec = std::find_if(roles_.context.begin(), roles_.context.end(),
                                       [&](const TensorSpec* one) { return one->name == input.name(); });
        const std::size_t axis = roles_.batch_axis(**spec);
        if (axis == (*spec)->dims.size()) {
            kept.push_back(input);
        } else {
            repeated.push_back(taken_along(input, texts, axis));
        }
    }
    repeated_ = std::move(repeated);
    context_ = std::move(kept);
    context_.insert(context_.end(), repeated_.begin(), repeated_.end());
}

void Decoding::take(const std::vector<std::size_t>& texts) {
    if (texts.size() != keep_.size()) repeat_context(texts);
    std::vector<std::vector<bool>> kept;
    kept.reserve(texts.size());
    for (const std::size_t text : texts) kept.push_back(keep_[text]);
    keep_ = std::move(kept);
    if (steps_ != nullptr) {
        steps_->take(texts);
    } else {
        caches_ = taken(roles_, caches_, texts);
    }
}

}  // namespace attnport::reader
