#include "run/batches.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include <attnport/error.hpp>

#include "format/contract.hpp"
#include "format/text.hpp"
#include "run/arrays.hpp"

namespace attnport::reader {
namespace {

using Batch = std::vector<std::size_t>;

/// Copies what two arrays both have room for, at the origin of both.
class Block {
public:
    Block(std::size_t width, Shape from, Shape into) : width_(width), from_(std::move(from)), into_(std::move(into)) {}

    void copy(const std::byte* source, std::byte* target) const { copy(source, target, 0); }

    [[nodiscard]] std::size_t from_bytes() const { return elements(from_) * width_; }
    [[nodiscard]] std::size_t into_bytes() const { return elements(into_) * width_; }

private:
    void copy(const std::byte* source, std::byte* target, std::size_t axis) const {
        const auto at = static_cast<std::ptrdiff_t>(axis);
        if (std::equal(from_.begin() + at, from_.end(), into_.begin() + at)) {
            const std::size_t bytes = elements({from_.begin() + at, from_.end()}) * width_;
            if (bytes != 0) std::memcpy(target, source, bytes);
            return;
        }
        const std::size_t source_step = elements({from_.begin() + at + 1, from_.end()}) * width_;
        const std::size_t target_step = elements({into_.begin() + at + 1, into_.end()}) * width_;
        const auto count = static_cast<std::size_t>(std::min(from_[axis], into_[axis]));
        for (std::size_t index = 0; index < count; ++index) {
            copy(source + index * source_step, target + index * target_step, axis + 1);
        }
    }

    std::size_t width_;
    Shape from_;
    Shape into_;
};

/// A tensor that is being filled.
struct Filled {
    std::string name;
    DType dtype;
    Shape shape;
    std::shared_ptr<std::byte> memory;

    Filled(std::string called, DType type, Shape sizes)
        : name(std::move(called)), dtype(type), shape(std::move(sizes)),
          memory(allocate(elements(shape) * size_bytes(dtype))) {}

    [[nodiscard]] Tensor tensor() const { return {name, dtype, shape, memory}; }
};

/// A batch of fewer tokens is slower per token: items of any length join it.
constexpr std::int64_t full_places = 128;
constexpr std::int64_t eight = 8;

/// The input that says how many items there are, and the padding masks, the first of which it carries.
struct Counted {
    const TensorSpec& spec;
    std::vector<const Mask*> masks;
};

const TensorSpec& input_of(const IO& io, const std::string& name) {
    if (const TensorSpec* const found = find_named(io.inputs, name)) return *found;
    throw Error("the contract has no input " + reader::quoted(name) + ".");
}

Counted counted(const IO& io) {
    std::vector<const Mask*> masks;
    for (const auto& mask : io.masks) {
        if (mask.input && mask.has("padding")) masks.push_back(&mask);
    }
    if (masks.empty()) {
        const TensorSpec& first = io.inputs.front();
        if (!first.dims.empty() && dim_of(io.dims, first.dims[0]) != nullptr) return {first, {}};
        throw FeedError(first.text() + ": its first dim is no number of items; run one batch at a time.");
    }
    const TensorSpec& first = input_of(io, *masks[0]->input);
    const bool simple = std::all_of(masks.begin(), masks.end(), [&](const Mask* mask) {
        return mask->carries == "mask" && (mask->polarity == "keep" || mask->polarity == "hide") &&
               input_of(io, *mask->input).dims == first.dims;
    });
    if (!simple || first.dims.size() != 2 || dim_of(io.dims, first.dims[0]) == nullptr ||
        dim_of(io.dims, first.dims[1]) == nullptr) {
        throw FeedError("the model's padding masks are not [batch, seq]; run one batch at a time.");
    }
    return {first, masks};
}

bool is_first(const TensorSpec& spec, const Axis& item) { return !spec.dims.empty() && spec.dims[0] == item; }

void require_rows(const IO& io, const Axis& item, std::string_view only) {
    const auto& name = std::get<std::string>(item);
    for (const auto& spec : io.outputs) {
        if (!only.empty() && only != spec.name) continue;
        const std::string about = "output " + reader::quoted(spec.name);
        if (!is_first(spec, item)) {
            throw FeedError(about + " has no row for each item of " + name + "; run one batch at a time.");
        }
        // As scores of every item beside every other one: they would be of the items of one batch alone.
        if (std::any_of(spec.dims.begin() + 1, spec.dims.end(), [&](const Axis& axis) { return follows(io, axis, name); })) {
            throw FeedError(about + " depends on the number of items, " + name + "; run one batch at a time.");
        }
    }
}

/// The inputs in the contract's order; none if a name or rank is not the contract's, which `run` says better.
std::optional<std::vector<const Input*>> inputs_in_order(const IO& io, const Inputs& inputs) {
    if (inputs.size() != io.inputs.size()) return std::nullopt;
    std::vector<const Input*> found;
    for (const auto& spec : io.inputs) {
        const auto at = std::find_if(inputs.begin(), inputs.end(),
                                     [&](const Input& input) { return input.name() == spec.name; });
        if (at == inputs.end() || at->shape().size() != spec.dims.size()) return std::nullopt;
        found.push_back(&*at);
    }
    return found;
}

void require_memory(const Input& input) {
    const std::string about = "input " + reader::quoted(input.name()) + ": got ";
    if (input.place() != Place::Cpu) throw FeedError(about + "a tensor on cuda; map takes tensors on the cpu.");
    const std::size_t count = elements(input.shape());
    if (count != 0 && input.data() == nullptr) {
        throw FeedError(about + "no memory for " + std::to_string(count) + " elements.");
    }
}

/// Such as `ids 3, mask 4`.
std::string words_of(const std::vector<std::pair<std::string, std::int64_t>>& sizes) {
    std::vector<std::string> parts;
    parts.reserve(sizes.size());
    for (const auto& [name, size] : sizes) parts.push_back(shown(name) + " " + std::to_string(size));
    return joined(parts);
}

bool differ(const std::vector<std::pair<std::string, std::int64_t>>& sizes) {
    return std::any_of(sizes.begin(), sizes.end(), [&](const auto& one) { return one.second != sizes[0].second; });
}

/// Without the first axis: the shape of one item.
Shape rest(const Shape& shape) { return {shape.begin() + 1, shape.end()}; }

/// Whether an element is not zero; -0.0 is.
bool is_set(const std::byte* element, DType dtype) {
    const std::size_t width = size_bytes(dtype);
    const bool is_float = dtype != DType::Int32 && dtype != DType::Int64 && dtype != DType::Bool;
    for (std::size_t byte = 0; byte < width; ++byte) {
        const bool has_sign = is_float && byte + 1 == width;
        if ((element[byte] & (has_sign ? std::byte{0x7F} : std::byte{0xFF})) != std::byte{0}) return true;
    }
    return false;
}

/// What is to be run.
class Items {
public:
    /// Throws FeedError: inputs have different numbers of items or places, or there is no item.
    Items(const IO& io, std::vector<const Input*> inputs, const Counted& by)
        : io_(io), inputs_(std::move(inputs)), item_(by.spec.dims[0]),
          place_(by.masks.empty() ? nullptr : dim_of(io.dims, by.spec.dims[1])) {
        for (const Input* input : inputs_) require_memory(*input);
        std::vector<std::pair<std::string, std::int64_t>> widths;
        std::vector<std::pair<std::string, std::int64_t>> counts;
        for (std::size_t index = 0; index < inputs_.size(); ++index) {
            const TensorSpec& spec = io.inputs[index];
            const Shape& shape = inputs_[index]->shape();
            const auto axis =
                std::find_if(spec.dims.begin(), spec.dims.end(), [&](const Axis& one) { return is_place(one); });
            if (axis != spec.dims.end()) {
                widths.emplace_back(spec.name, shape[static_cast<std::size_t>(axis - spec.dims.begin())]);
            }
            if (is_first(spec, item_)) counts.emplace_back(spec.name, shape[0]);
        }
        if (differ(widths)) {
            throw FeedError(place_->name + ": got " + words_of(widths) + "; expected the same size for every input.");
        }
        if (differ(counts) || counts[0].second == 0) {
            throw FeedError("items: got " + words_of(counts) +
                            "; expected the same number for every input, at least one.");
        }
        lengths_.assign(static_cast<std::size_t>(counts[0].second), 1);
        if (place_ == nullptr) return;
        width_ = widths[0].second;
        if (width_ == 0) return;  // the model says itself what is wrong
        for (const Mask* mask : by.masks) {
            const auto at = static_cast<std::size_t>(&input_of(io, *mask->input) - io.inputs.data());
            masks_.emplace_back(inputs_[at], mask->polarity == "keep");
        }
        left_ = is_left();
        for (std::size_t at = 0; at < lengths_.size(); ++at) lengths_[at] = at_least(real_length(at));
    }

    [[nodiscard]] const std::vector<std::int64_t>& lengths() const noexcept { return lengths_; }
    [[nodiscard]] const Dim& sizes() const { return *dim_of(io_.dims, item_); }

    /// The items of a batch, and its last one once more for each that is missing to a size that the model takes.
    [[nodiscard]] Batch filled(Batch batch) const {
        const std::int64_t size = reader::at_least(sizes(), static_cast<std::int64_t>(batch.size()));
        batch.resize(static_cast<std::size_t>(size), batch.back());
        return batch;
    }

    /// The least size of the model that has room for the length.
    [[nodiscard]] std::int64_t at_least(std::int64_t length) const {
        return place_ == nullptr ? length : reader::at_least(*place_, length);
    }

    /// The inputs of a batch, cut to the length.
    [[nodiscard]] std::vector<Tensor> part(const Batch& batch, std::int64_t length) const {
        std::vector<Tensor> found;
        for (std::size_t index = 0; index < inputs_.size(); ++index) {
            const TensorSpec& spec = io_.inputs[index];
            const Input& input = *inputs_[index];
            Shape shape = input.shape();
            for (std::size_t axis = 0; axis < shape.size(); ++axis) {
                if (is_place(spec.dims[axis])) shape[axis] = std::min(length, shape[axis]);
            }
            const std::size_t width = size_bytes(input.dtype());
            const auto* const data = static_cast<const std::byte*>(input.data());
            if (is_first(spec, item_)) {
                shape[0] = static_cast<std::int64_t>(batch.size());
                const Filled filled(spec.name, input.dtype(), shape);
                const Block row(width, rest(input.shape()), rest(shape));
                const std::byte* const from = data + skipped(spec, 1, input.shape(), shape) * width;
                for (std::size_t at = 0; at < batch.size(); ++at) {
                    row.copy(from + batch[at] * row.from_bytes(), filled.memory.get() + at * row.into_bytes());
                }
                found.push_back(filled.tensor());
            } else {
                const Filled filled(spec.name, input.dtype(), shape);
                Block(width, input.shape(), shape)
                    .copy(data + skipped(spec, 0, input.shape(), shape) * width, filled.memory.get());
                found.push_back(filled.tensor());
            }
        }
        return found;
    }

    /// Zeros for the outputs of all items, from those of a batch.
    [[nodiscard]] std::vector<Filled> whole(const Outputs& outputs, std::string_view only) const {
        std::vector<Filled> found;
        for (std::size_t index = 0; index < outputs.size(); ++index) {
            if (!is_asked(index, only)) continue;
            Shape shape = outputs[index].shape();
            shape[0] = static_cast<std::int64_t>(lengths_.size());
            for (std::size_t axis = 1; axis < shape.size(); ++axis) {
                if (is_place(io_.outputs[index].dims[axis])) shape[axis] = width_;
            }
            found.emplace_back(outputs[index].name(), outputs[index].dtype(), std::move(shape));
        }
        return found;
    }

    /// Puts the outputs of a batch in the places of its items. Throws FeedError: one has no room there, or none that is
    /// known, as its size follows from the values of inputs, or from the places of items that padding stands before.
    void put(const Outputs& outputs, const Batch& batch, std::string_view only,
             const std::vector<Filled>& whole) const {
        auto into = whole.begin();
        for (std::size_t index = 0; index < outputs.size(); ++index) {
            if (!is_asked(index, only)) continue;
            const Tensor& output = outputs[index];
            require_room(io_.outputs[index], output.shape(), into->shape);
            const std::size_t width = size_bytes(output.dtype());
            const Block row(width, rest(output.shape()), rest(into->shape));
            const auto* const data = static_cast<const std::byte*>(output.data());
            std::byte* const first =
                into->memory.get() + skipped(io_.outputs[index], 1, into->shape, output.shape()) * width;
            for (std::size_t at = 0; at < batch.size(); ++at) {
                row.copy(data + at * row.from_bytes(), first + batch[at] * row.into_bytes());
            }
            ++into;
        }
    }

private:
    [[nodiscard]] bool is_place(const Axis& axis) const { return place_ != nullptr && axis == Axis(place_->name); }

    void require_room(const TensorSpec& spec, const Shape& got, const Shape& whole) const {
        for (std::size_t axis = 1; axis < got.size(); ++axis) {
            const bool of_places = place_ != nullptr && follows(io_, spec.dims[axis], place_->name);
            const bool is_moved = left_ && of_places && !is_place(spec.dims[axis]);
            if (got[axis] <= whole[axis] && !is_moved && (got[axis] == whole[axis] || of_places)) continue;
            const auto* const text = std::get_if<std::string>(&spec.dims[axis]);
            throw FeedError("output " + reader::quoted(spec.name) + ": its size " +
                            (text == nullptr ? std::to_string(whole[axis]) : reader::quoted(*text)) +
                            " differs from batch to batch, and says not where items stand; run one batch at a time.");
        }
    }

    [[nodiscard]] bool is_asked(std::size_t output, std::string_view only) const {
        return only.empty() || only == io_.outputs[output].name;
    }

    /// The elements of an array with all places that stand before the first of those in one with fewer.
    [[nodiscard]] std::size_t skipped(const TensorSpec& spec, std::size_t first_axis, const Shape& all,
                                      const Shape& fewer) const {
        if (!left_) return 0;
        std::size_t found = 0;
        for (std::size_t axis = first_axis; axis < all.size(); ++axis) {
            const Shape behind{all.begin() + static_cast<std::ptrdiff_t>(axis) + 1, all.end()};
            if (is_place(spec.dims[axis])) found += static_cast<std::size_t>(all[axis] - fewer[axis]) * elements(behind);
        }
        return found;
    }

    /// Whether one of the masks says that a place of an item is no padding.
    [[nodiscard]] bool is_real(std::size_t item, std::int64_t place) const {
        const std::size_t at = item * static_cast<std::size_t>(width_) + static_cast<std::size_t>(place);
        return std::any_of(masks_.begin(), masks_.end(), [at](const auto& mask) {
            const auto& [input, keep] = mask;
            const auto* const all = static_cast<const std::byte*>(input->data());
            return is_set(all + at * size_bytes(input->dtype()), input->dtype()) == keep;
        });
    }

    /// Whether padding stands before the items: each that has a real token has one at its last place, and not each at
    /// its first.
    [[nodiscard]] bool is_left() const {
        bool padded = false;
        for (std::size_t item = 0; item < lengths_.size(); ++item) {
            std::int64_t first = 0;
            while (first < width_ && !is_real(item, first)) ++first;
            if (first == width_) continue;
            if (!is_real(item, width_ - 1)) return false;
            padded = padded || first != 0;
        }
        return padded;
    }

    /// The places of an item without its padding, at least one.
    [[nodiscard]] std::int64_t real_length(std::size_t item) const {
        for (std::int64_t length = width_; length > 1; --length) {
            if (is_real(item, left_ ? width_ - length : length - 1)) return length;
        }
        return 1;
    }

    const IO& io_;
    std::vector<const Input*> inputs_;
    Axis item_;
    const Dim* place_;        ///< null in a model without a padding mask
    std::int64_t width_ = 0;  ///< the places that inputs come with
    bool left_ = false;       ///< padding stands before the items
    std::vector<std::pair<const Input*, bool>> masks_;  ///< each with whether it keeps what is not zero
    std::vector<std::int64_t> lengths_;
};

bool is_vector(const TensorSpec& spec) {
    return spec.dims.size() == 2 && std::holds_alternative<std::int64_t>(spec.dims[1]);
}

std::string outputs_of(const IO& io) {
    std::vector<std::string> given;
    for (const auto& spec : io.outputs) given.push_back(spec.text());
    return joined(given);
}

}  // namespace

Outputs map_batches(const std::function<Outputs(const Inputs&)>& run, const IO& io, const Inputs& inputs,
                    std::int64_t tokens, std::string_view only) {
    if (tokens < 1) throw FeedError("tokens: got " + std::to_string(tokens) + "; expected 1 or more.");
    const Counted by = counted(io);
    require_rows(io, by.spec.dims[0], only);
    auto ordered = inputs_in_order(io, inputs);
    if (!ordered) return run(inputs);
    const Items items(io, std::move(*ordered), by);
    const std::vector<std::int64_t>& lengths = items.lengths();
    // The longest items first: if one is too large, that is known before others ran.
    Batch order(lengths.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] > lengths[b]; });
    std::vector<Filled> whole;
    for (std::size_t begin = 0; begin < order.size();) {
        const std::int64_t length = lengths[order[begin]];
        const Dim& sizes = items.sizes();
        const std::int64_t room = std::min(tokens / length, sizes.max) / sizes.step * sizes.step;
        const std::size_t most = static_cast<std::size_t>(std::max(room, reader::at_least(sizes, 1)));
        const std::size_t last = begin + std::min(most, order.size() - begin);
        std::size_t end = begin + 1;
        const auto full = [&] {
            const auto count = static_cast<std::int64_t>(end - begin);
            return count * length >= full_places && reader::takes(sizes, count);
        };
        // Once a batch is full, it takes only items at least three quarters as long as its longest.
        while (end < last && (!full() || 4 * lengths[order[end]] >= 3 * length)) ++end;
        const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
        const Batch batch(first, first + static_cast<std::ptrdiff_t>(end - begin));
        const std::vector<Tensor> part = items.part(items.filled(batch), length);
        const Outputs found = run({part.begin(), part.end()});
        if (begin == 0) whole = items.whole(found, only);
        items.put(found, batch, only, whole);
        begin = end;
    }
    std::vector<Tensor> tensors;
    tensors.reserve(whole.size());
    for (const auto& filled : whole) tensors.push_back(filled.tensor());
    return Outputs(std::move(tensors));
}

IO in_eights(IO io) {
    std::string places;
    try {
        const Counted by = counted(io);
        if (by.masks.empty()) return io;
        places = std::get<std::string>(by.spec.dims[1]);
    } catch (const FeedError&) {
        return io;
    }
    for (Dim& dim : io.dims) {
        const std::int64_t step = std::lcm(dim.step, eight);
        if (dim.name != places || dim.max % step != 0) continue;
        dim.step = step;
        dim.min = at_least(dim, dim.min);
        dim.opt = at_least(dim, dim.opt);
    }
    return io;
}

const TensorSpec& embedding(const IO& io) {
    std::vector<const TensorSpec*> found;
    bool scores = false;  // as of a reranker or a classifier
    for (const auto& spec : io.outputs) {
        scores = scores || ((spec.name == "scores" || spec.name == "logits") && spec.dims.size() <= 2);
        if (is_vector(spec)) found.push_back(&spec);
    }
    if (found.size() == 1 && !scores) return *found[0];
    throw FeedError("embed: got the outputs " + outputs_of(io) + "; expected one [batch, number], and neither scores nor logits.");
}

const TensorSpec& scoring(const IO& io) {
    for (const std::string_view name : {"scores", "logits"}) {
        const TensorSpec* const spec = find_named(io.outputs, name);
        if (spec != nullptr && (spec->dims.size() == 1 || is_vector(*spec))) return *spec;
    }
    throw FeedError("predict: got the outputs " + outputs_of(io) + "; expected scores or logits, a row for each text.");
}

}  // namespace attnport::reader
