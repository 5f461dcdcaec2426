#include "decoding.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include <attnport/error.hpp>

#include "halves.hpp"
#include "memory.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

/// The least places that a buffer has behind its tokens when it is made.
constexpr std::int64_t more_places = 64;

std::size_t product(const Shape& shape, std::size_t begin, std::size_t end) {
    const auto at = [&](std::size_t axis) { return shape.begin() + static_cast<std::ptrdiff_t>(axis); };
    return elements(Shape(at(begin), at(end)));
}

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

/// Two tensors behind each other along an axis; they differ in nothing else.
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

/// A tensor with another number of places along an axis; those that are new hold zeros.
Tensor with_places(const Tensor& tensor, std::size_t axis, std::int64_t places) {
    Shape shape = tensor.shape();
    const std::size_t count = product(shape, 0, axis);
    const std::size_t place = product(shape, axis + 1, shape.size()) * size_bytes(tensor.dtype());
    const std::size_t had = static_cast<std::size_t>(shape[axis]) * place;
    const std::size_t has = static_cast<std::size_t>(places) * place;
    shape[axis] = places;
    std::shared_ptr<std::byte> memory = allocate(count * has);
    const auto* const from = static_cast<const std::byte*>(tensor.data());
    for (std::size_t at = 0; at < count && std::min(had, has) != 0; ++at) {
        std::memcpy(memory.get() + at * has, from + at * had, std::min(had, has));
    }
    return {tensor.name(), tensor.dtype(), std::move(shape), std::move(memory)};
}

/// Rows of a tensor along an axis.
Tensor taken(const Input& tensor, const std::vector<std::size_t>& rows, std::size_t axis) {
    Shape shape = tensor.shape();
    const std::size_t outer = product(shape, 0, axis);
    const std::size_t bytes = product(shape, axis + 1, shape.size()) * size_bytes(tensor.dtype());
    const auto had = static_cast<std::size_t>(shape[axis]);
    shape[axis] = static_cast<std::int64_t>(rows.size());
    std::shared_ptr<std::byte> memory = allocate(outer * rows.size() * bytes);
    const auto* const from = static_cast<const std::byte*>(tensor.data());
    for (std::size_t at = 0; at < outer && bytes != 0; ++at) {
        for (std::size_t row = 0; row < rows.size(); ++row) {
            std::memcpy(memory.get() + (at * rows.size() + row) * bytes, from + (at * had + rows[row]) * bytes, bytes);
        }
    }
    return {std::string(tensor.name()), tensor.dtype(), std::move(shape), std::move(memory)};
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

Decoding::Decoding(Run run, const IO& io, const Roles& roles, StepInPlace step, Inputs context)
    : run_(std::move(run)), step_(std::move(step)), io_(io), roles_(roles), context_(std::move(context)) {
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
    std::vector<std::vector<bool>> whole = keep_;
    std::vector<std::int64_t> tokens;
    for (std::size_t text = 0; text < batch; ++text) {
        whole[text].insert(whole[text].end(), keep[text].begin(), keep[text].end());
        tokens.insert(tokens.end(), ids[text].begin(), ids[text].end());
    }
    std::vector<Tensor> given{tensor_of(*roles_.ids, shape_of(keep), tokens)};
    if (roles_.mask != nullptr) {
        const auto& real = roles_.whole ? whole : keep_;
        given.push_back(tensor_of(*roles_.mask, shape_of(real), numbers(real)));
    }
    Inputs inputs(given.begin(), given.end());
    inputs.insert(inputs.end(), context_.begin(), context_.end());
    if (step_ && ids[0].size() == 1 && !keep_[0].empty()) {
        const Outputs outputs = stepped(std::move(inputs));
        keep_ = std::move(whole);
        return last(outputs, batch);
    }
    const auto length = static_cast<std::int64_t>(keep_[0].size());
    for (std::size_t at = 0; at < caches_.size(); ++at) {
        Tensor& cache = caches_[at];
        const Cached& role = roles_.caches[at];
        if (cache.shape()[role.axis] != length) cache = with_places(cache, role.axis, length);
        inputs.emplace_back(role.spec->name, cache.data(), cache.dtype(), cache.shape());
    }
    const Outputs outputs = run_(inputs);
    follow(outputs);
    keep_ = std::move(whole);
    return last(outputs, batch);
}

Outputs Decoding::stepped(Inputs inputs) {
    const auto length = static_cast<std::int64_t>(keep_[0].size());
    std::vector<Buffer> buffers;
    for (std::size_t at = 0; at < caches_.size(); ++at) {
        Tensor& cache = caches_[at];
        const Cached& role = roles_.caches[at];
        if (cache.shape()[role.axis] == length) {
            cache = with_places(cache, role.axis, length + std::max<std::int64_t>(more_places, length / 4));
        }
        Shape filled = cache.shape();
        filled[role.axis] = length;
        inputs.emplace_back(role.spec->name, cache.data(), cache.dtype(), std::move(filled));
        buffers.push_back({role.spec->name, role.output, cache});
    }
    return step_(inputs, buffers);
}

void Decoding::follow(const Outputs& outputs) {
    for (std::size_t at = 0; at < caches_.size(); ++at) {
        const Cached& cache = roles_.caches[at];
        const Tensor& found = cast(outputs.at(cache.output), cache.spec->dtype);
        caches_[at] = roles_.grown ? found : joined_along(caches_[at], found, cache.axis);
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
        const auto& dims = (*spec)->dims;
        const auto axis = std::find(dims.begin(), dims.end(), roles_.ids->dims[0]);
        if (axis == dims.end()) {
            kept.push_back(input);
        } else {
            repeated.push_back(taken(input, texts, static_cast<std::size_t>(axis - dims.begin())));
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
    for (std::size_t at = 0; at < caches_.size(); ++at) {
        const auto& dims = roles_.caches[at].spec->dims;
        const auto axis = std::find(dims.begin(), dims.end(), roles_.ids->dims[0]) - dims.begin();
        caches_[at] = taken(caches_[at], texts, static_cast<std::size_t>(axis));
    }
}

}  // namespace attnport::reader
