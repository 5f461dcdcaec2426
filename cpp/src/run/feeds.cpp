#include "run/feeds.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include <attnport/error.hpp>

#include "format/contract.hpp"
#include "format/expression.hpp"
#include "format/text.hpp"
#include "run/arrays.hpp"

namespace attnport::reader {
namespace {

/// The size that a named dim has in this call, and the input that gave it first.
struct Given {
    std::int64_t size = -1;
    const std::string* by = nullptr;
};

using Known = std::vector<std::optional<std::int64_t>>;  // the size of each named dim, as far as inputs tell
std::string about(const TensorSpec& spec) { return "input " + reader::quoted(spec.name); }

/// Where the contract has an input. Most callers give them in its order, so that place is looked at first.
std::size_t declared_at(const IO& io, std::size_t likely, std::string_view name) {
    if (likely < io.inputs.size() && io.inputs[likely].name == name) return likely;
    for (std::size_t index = 0; index < io.inputs.size(); ++index) {
        if (io.inputs[index].name == name) return index;
    }
    throw FeedError("input " + reader::quoted(name) + ": the model has no such input; expected " +
                    joined(names_of(io.inputs)) + ".");
}

/// Pointers to inputs in the contract's order; null for those that are missing.
std::vector<const Input*> in_order(const IO& io, const Inputs& inputs) {
    std::vector<const Input*> found(io.inputs.size(), nullptr);
    for (std::size_t index = 0; index < inputs.size(); ++index) {
        const Input*& slot = found[declared_at(io, index, inputs[index].name())];
        if (slot != nullptr) throw FeedError("input " + reader::quoted(inputs[index].name()) + ": it is there twice.");
        slot = &inputs[index];
    }
    return found;
}

void check_size(const IO& io, const TensorSpec& spec, std::size_t axis, std::int64_t got, std::vector<Given>& sizes) {
    const auto* fixed = std::get_if<std::int64_t>(&spec.dims[axis]);
    if (fixed != nullptr) {
        if (got == *fixed) return;
        throw FeedError(about(spec) + ": got size " + std::to_string(got) + " on axis " + std::to_string(axis) +
                        "; expected " + std::to_string(*fixed) + ".");
    }
    const auto& dim = std::get<std::string>(spec.dims[axis]);
    const Dim* const limit = find_named(io.dims, dim);
    if (limit == nullptr) return;  // an expression, which `check_computed` compares
    Given& given = sizes[static_cast<std::size_t>(limit - io.dims.data())];
    if (given.by == nullptr) given = {got, &spec.name};
    const auto words = [&] {
        return about(spec) + ": got " + dim + "=" + std::to_string(got) + " on axis " + std::to_string(axis) +
               "; expected ";
    };
    if (given.size != got) {
        throw FeedError(words() + dim + "=" + std::to_string(given.size) + " as in input " +
                        reader::quoted(*given.by) + ".");
    }
    if (!takes(*limit, got)) throw FeedError(words() + span(*limit) + "." + wider(*limit, got));
}

void check_shape(const IO& io, const TensorSpec& spec, const Input& input, DType wanted, std::vector<Given>& sizes) {
    if (input.dtype() != wanted) {
        throw FeedError(about(spec) + ": got dtype " + std::string(name(input.dtype())) + "; expected " +
                        std::string(name(wanted)) + ".");
    }
    const Shape& shape = input.shape();
    if (shape.size() != spec.dims.size()) {
        throw FeedError(about(spec) + ": got rank " + std::to_string(shape.size()) + ", shape " + listed(shape) +
                        "; expected rank " + std::to_string(spec.dims.size()) + ", " + spec.text() + ".");
    }
    for (std::size_t axis = 0; axis < shape.size(); ++axis) check_size(io, spec, axis, shape[axis], sizes);
}

/// Whether a size is the one that an axis has in this call; that of a named dim is noted where it was not known.
bool is_size(const IO& io, const Axis& axis, std::int64_t got, Known& known) {
    if (is_unknown(axis)) return true;
    if (const auto* const fixed = std::get_if<std::int64_t>(&axis)) return got == *fixed;
    const auto known_of = [&](const Dim* dim) -> auto& { return known[static_cast<std::size_t>(dim - io.dims.data())]; };
    if (const Dim* const dim = find_named(io.dims, std::get<std::string>(axis))) {
        if (!known_of(dim)) known_of(dim) = got;
        return *known_of(dim) == got;
    }
    const auto size_of = [&](std::string_view name) -> std::optional<std::int64_t> {
        const Dim* const dim = find_named(io.dims, name);
        return dim == nullptr ? std::nullopt : known_of(dim);
    };
    return value_of(std::get<std::string>(axis), size_of) == got;
}

std::string words_of(const IO& io, const Known& known) {
    std::vector<std::string> said;
    for (std::size_t dim = 0; dim < known.size(); ++dim) {
        if (known[dim]) said.push_back(io.dims[dim].name + "=" + std::to_string(*known[dim]));
    }
    return said.empty() ? "any size" : joined(said);
}

/// The sizes of named dims in a call's inputs.
Known sizes_of(const IO& io, const std::vector<const Input*>& inputs) {
    Known known(io.dims.size());
    for (std::size_t index = 0; index < inputs.size(); ++index) {
        for (std::size_t axis = 0; inputs[index] != nullptr && axis < io.inputs[index].dims.size(); ++axis) {
            static_cast<void>(is_size(io, io.inputs[index].dims[axis], inputs[index]->shape()[axis], known));
        }
    }
    return known;
}

/// Checks the sizes that are expressions.
void check_computed(const IO& io, const std::vector<const Input*>& inputs, Known& known) {
    for (std::size_t index = 0; index < inputs.size(); ++index) {
        const TensorSpec& spec = io.inputs[index];
        for (std::size_t axis = 0; axis < spec.dims.size(); ++axis) {
            const std::int64_t got = inputs[index]->shape()[axis];
            if (is_size(io, spec.dims[axis], got, known)) continue;
            throw FeedError(about(spec) + ": got size " + std::to_string(got) + " on axis " + std::to_string(axis) +
                            "; expected " + std::get<std::string>(spec.dims[axis]) + " with " + words_of(io, known) +
                            ".");
        }
    }
}

/// Checks that there is memory, and that elements can be read from it.
void check_memory(const TensorSpec& spec, const Input& input) {
    const std::size_t count = elements(input.shape());
    if (count == 0) return;
    if (input.data() == nullptr) {
        throw FeedError(about(spec) + ": got no memory for " + std::to_string(count) + " elements.");
    }
    const std::size_t width = size_bytes(input.dtype());
    if (reinterpret_cast<std::uintptr_t>(input.data()) % width != 0) {
        throw FeedError(about(spec) + ": got memory that is not aligned; expected a multiple of " +
                        std::to_string(width) + " bytes.");
    }
}

/// Whether every value is from 0 to `last`. One pass without a branch, which compilers vectorise: a sign bit in a
/// value, or in what is left of `last` behind it, stays in the sum of all bits.
template <class T> bool all_within(const T* values, std::size_t count, std::int64_t last) {
    using Bits = std::make_unsigned_t<T>;
    const auto largest = static_cast<Bits>(std::min<std::int64_t>(last, std::numeric_limits<T>::max()));
    Bits seen = 0;
    for (std::size_t index = 0; index < count; ++index) {
        const auto value = static_cast<Bits>(values[index]);
        seen |= value | (largest - value);
    }
    return seen >> (std::numeric_limits<Bits>::digits - 1) == 0;
}

template <class T> void check_range(const TensorSpec& spec, const Input& input, std::int64_t last) {
    const auto* values = static_cast<const T*>(input.data());
    const std::size_t count = elements(input.shape());
    // ONNX takes a negative index from the end, so an id below zero would give a wrong answer and no error.
    if (count == 0 || all_within(values, count, last)) return;
    const auto [least, most] = std::minmax_element(values, values + count);
    throw FeedError(about(spec) + ": got values " + std::to_string(*least) + " to " + std::to_string(*most) +
                    "; expected 0 to " + std::to_string(last) + ".");
}

void check_values(const IO& io, const TensorSpec& spec, const Input& input, const Known& known) {
    std::int64_t last = spec.high.value_or(0) - 1;  // -1 without a limit: compilers warn of an optional here
    for (const Mask& mask : io.masks) {
        const bool counts = last < 0 && mask.carries == "lengths" && mask.input == spec.name && mask.keys;
        const Dim* const keys = counts ? find_named(io.dims, *mask.keys) : nullptr;
        if (keys != nullptr) last = known[static_cast<std::size_t>(keys - io.dims.data())].value_or(-1);
    }
    if (last < 0 || input.place() != Place::Cpu) return;
    if (spec.dtype == DType::Int64) check_range<std::int64_t>(spec, input, last);
    if (spec.dtype == DType::Int32) check_range<std::int32_t>(spec, input, last);
}

/// The bits of 0, 1 and -Inf in a dtype; an integer or boolean has no -Inf, and the manifest asks for none.
struct Bits {
    std::uint64_t one;
    std::uint64_t minus_infinity;
};

Bits bits(DType dtype) {
    switch (dtype) {
        case DType::Float32: return {0x3F800000U, 0xFF800000U};
        case DType::Float16: return {0x3C00U, 0xFC00U};
        case DType::Float64: return {0x3FF0000000000000U, 0xFFF0000000000000U};
        case DType::BFloat16: return {0x3F80U, 0xFF80U};
        default: return {1, 1};
    }
}

/// Writes the lowest bytes of `value` as one element: what a little-endian machine has in memory.
void put(std::byte* data, std::size_t index, std::size_t width, std::uint64_t value) {
    for (std::size_t byte = 0; byte < width; ++byte) {
        data[index * width + byte] = static_cast<std::byte>(value >> 8U * byte & 0xFFU);
    }
}

Tensor lengths_tensor(const TensorSpec& spec, const std::vector<std::int64_t>& lengths) {
    const std::size_t width = size_bytes(spec.dtype);
    auto memory = allocate(lengths.size() * width);
    for (std::size_t item = 0; item < lengths.size(); ++item) {
        if (spec.dtype == DType::Int32 && lengths[item] > std::numeric_limits<std::int32_t>::max()) {
            throw FeedError(about(spec) + ": length " + std::to_string(lengths[item]) + " is too large for int32.");
        }
        put(memory.get(), item, width, static_cast<std::uint64_t>(lengths[item]));
    }
    return {spec.name, spec.dtype, {static_cast<std::int64_t>(lengths.size())}, std::move(memory)};
}

bool is_one(const Axis& axis) {
    const auto* size = std::get_if<std::int64_t>(&axis);
    return size != nullptr && *size == 1;
}

/// The shape of a padding mask: [B,T], or [B,1,S,T] with one query or as many as keys.
Shape mask_shape(const TensorSpec& spec, std::int64_t batch, std::int64_t size) {
    if (spec.dims.size() == 2) return {batch, size};
    if (spec.dims.size() == 4 && is_one(spec.dims[1])) return {batch, 1, is_one(spec.dims[2]) ? 1 : size, size};
    throw FeedError(about(spec) + ": there is no rule for a padding mask of this shape, " + spec.text() + ".");
}

Tensor padding_mask(const Mask& mask, const TensorSpec& spec, const std::vector<std::int64_t>& lengths,
                    std::int64_t size, bool left) {
    if (mask.carries == "lengths") return lengths_tensor(spec, lengths);
    std::vector<std::string> others;
    std::copy_if(mask.kinds.begin(), mask.kinds.end(), std::back_inserter(others),
                 [](const std::string& kind) { return kind != "padding"; });
    if (mask.carries == "mask" && !others.empty()) {
        throw FeedError(about(spec) + " is to say " + joined(others) +
                        " as well as padding; make it for your items.");
    }
    Shape shape = mask_shape(spec, static_cast<std::int64_t>(lengths.size()), size);
    const std::size_t width = size_bytes(spec.dtype);
    const std::size_t count = elements(shape);
    if (count > std::numeric_limits<std::size_t>::max() / width) {
        throw FeedError(about(spec) + ": a mask of shape " + listed(shape) + " is larger than memory.");
    }
    const auto [one, minus_infinity] = bits(spec.dtype);
    const std::uint64_t kept = mask.polarity == "keep" ? one : 0;
    const std::uint64_t hidden = mask.polarity == "keep" ? 0 : mask.polarity == "hide" ? one : minus_infinity;
    auto memory = allocate(count * width);
    const auto rows = count / static_cast<std::size_t>(size);
    for (std::size_t row = 0; row < rows; ++row) {
        const std::int64_t length = lengths[row / (rows / lengths.size())];
        for (std::int64_t key = 0; key < size; ++key) {
            const auto at = row * static_cast<std::size_t>(size) + static_cast<std::size_t>(key);
            put(memory.get(), at, width, (left ? size - 1 - key : key) < length ? kept : hidden);
        }
    }
    return {spec.name, spec.dtype, std::move(shape), std::move(memory)};
}

void require_fit(const IO& io, Known& known, std::size_t index, const Tensor& output) {
    const TensorSpec& spec = io.outputs[index];
    const Shape& shape = output.shape();
    bool fits = shape.size() == spec.dims.size();
    for (std::size_t axis = 0; fits && axis < shape.size(); ++axis) {
        fits = is_size(io, spec.dims[axis], shape[axis], known);
    }
    if (fits) return;
    throw Error("output " + reader::quoted(spec.name) + ": got shape " + listed(shape) + "; expected " + spec.text() +
                " with " + words_of(io, known) + ".");
}

}  // namespace

std::vector<const Input*> check_inputs(const IO& io, const Inputs& inputs, const std::map<std::string, DType>* dtypes) {
    std::vector<const Input*> found = in_order(io, inputs);
    std::vector<Given> sizes(io.dims.size());
    for (std::size_t index = 0; index < found.size(); ++index) {
        const TensorSpec& spec = io.inputs[index];
        if (found[index] == nullptr) throw FeedError(about(spec) + " is missing; expected " + spec.text() + ".");
        check_shape(io, spec, *found[index], dtypes == nullptr ? spec.dtype : dtypes->at(spec.name), sizes);
    }
    auto known = sizes_of(io, found);
    check_computed(io, found, known);
    for (std::size_t index = 0; index < found.size(); ++index) {
        check_memory(io.inputs[index], *found[index]);
        check_values(io, io.inputs[index], *found[index], known);
    }
    return found;
}

void check_outputs(const IO& io, const std::vector<const Input*>& inputs, const std::vector<Tensor>& outputs) {
    auto known = sizes_of(io, inputs);
    for (std::size_t index = 0; index < outputs.size(); ++index) require_fit(io, known, index, outputs[index]);
}

void check_output(const IO& io, const std::vector<const Input*>& inputs, std::size_t index, const Tensor& output) {
    auto known = sizes_of(io, inputs);
    require_fit(io, known, index, output);
}

void put(std::vector<Tensor>& tensors, Tensor tensor) {
    const auto same = std::find_if(tensors.begin(), tensors.end(),
                                   [&tensor](const Tensor& other) { return other.name() == tensor.name(); });
    if (same == tensors.end()) {
        tensors.push_back(std::move(tensor));
    } else {
        *same = std::move(tensor);
    }
}

std::vector<Tensor> padding_masks(const IO& io, const std::vector<std::int64_t>& lengths,
                                  std::optional<std::int64_t> size, bool left) {
    std::vector<const Mask*> masks;
    for (const auto& mask : io.masks) {
        if (mask.input && mask.has("padding")) masks.push_back(&mask);
    }
    if (masks.empty()) throw FeedError("the model takes no padding mask; give every item its full length.");
    const std::int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
    const std::int64_t wide = size.value_or(longest);
    const bool below = std::any_of(lengths.begin(), lengths.end(), [](std::int64_t length) { return length < 0; });
    if (lengths.empty() || below || longest > wide || wide < 1) {
        throw FeedError("lengths: got " + listed(lengths) + " for size " + std::to_string(wide) + "; expected 0 to " +
                        std::to_string(wide) + " for each item.");
    }
    std::vector<Tensor> found;
    for (const Mask* mask : masks) {
        const TensorSpec* const spec = find_named(io.inputs, *mask->input);
        if (spec == nullptr) throw Error("the contract has no input " + reader::quoted(*mask->input) + ".");
        put(found, padding_mask(*mask, *spec, lengths, wide, left));  // of two masks in one input the last one counts
    }
    return found;
}

}  // namespace attnport::reader
