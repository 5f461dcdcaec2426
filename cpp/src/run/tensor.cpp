#include <attnport/tensor.hpp>

#include <algorithm>
#include <array>
#include <limits>

#include <attnport/contract.hpp>
#include <attnport/error.hpp>

#include "format/text.hpp"

namespace attnport {

namespace {

struct Type {
    std::string_view name;
    std::size_t bytes;
};

// In the order of DType.
constexpr std::array<Type, 7> types = {
    {{"float32", 4}, {"float16", 2}, {"float64", 8}, {"int32", 4}, {"int64", 8}, {"bool", 1}, {"bfloat16", 2}}};
constexpr std::size_t most_elements = std::numeric_limits<std::ptrdiff_t>::max() / 8;

const Type& type(DType dtype) noexcept { return types[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::string_view name(DType dtype) noexcept { return type(dtype).name; }

std::size_t size_bytes(DType dtype) noexcept { return type(dtype).bytes; }

std::size_t elements(const Shape& shape) {
    // A size of 0 anywhere makes all of it nothing, but does not excuse the others.
    std::size_t nonzero = 1;
    bool none = false;
    for (const std::int64_t size : shape) {
        if (size < 0) throw FeedError("shape " + reader::listed(shape) + ": a size is below zero.");
        none = none || size == 0;
        if (size > 0 && nonzero > most_elements / static_cast<std::uint64_t>(size)) {
            throw FeedError("shape " + reader::listed(shape) + ": more elements than memory could hold.");
        }
        if (size > 0) nonzero *= static_cast<std::size_t>(size);
    }
    return none ? 0 : nonzero;
}

Tensor::Tensor(std::string name, DType dtype, Shape shape, std::shared_ptr<const void> data, Place place)
    : name_(std::move(name)),
      shape_(std::move(shape)),
      data_(std::move(data)),
      size_(elements(shape_)),
      dtype_(dtype),
      place_(place) {}

void Tensor::require(DType wanted) const {
    if (place_ != Place::Cpu) throw FeedError("tensor " + reader::quoted(name_) + " is on a GPU; expected CPU memory.");
    if (wanted != dtype_) {
        throw FeedError("tensor " + reader::quoted(name_) + ": got dtype " + std::string(attnport::name(dtype_)) +
                        "; expected " + std::string(attnport::name(wanted)) + ".");
    }
}

Input::Input(std::string_view name, const void* data, DType dtype, Shape shape, Place place)
    : name_(name), shape_(std::move(shape)), data_(data), dtype_(dtype), place_(place) {}

Input::Input(const Tensor& tensor)
    : Input(tensor.name(), tensor.data(), tensor.dtype(), tensor.shape(), tensor.place()) {}

void Input::require(std::size_t values) const {
    const std::size_t wanted = elements(shape_);
    if (values != wanted) {
        throw FeedError("tensor " + reader::quoted(name_) + ": got " + std::to_string(values) + " values; shape " +
                        reader::listed(shape_) + " has " + std::to_string(wanted) + ".");
    }
}

const Tensor& Outputs::at(std::string_view name) const {
    for (const auto& tensor : tensors_) {
        if (tensor.name() == name) return tensor;
    }
    std::vector<std::string> names;
    names.reserve(tensors_.size());
    for (const auto& tensor : tensors_) names.push_back(tensor.name());
    throw Error("there is no output " + reader::quoted(name) + "; there are " + reader::joined(names) + ".");
}

std::string TensorSpec::text() const {
    std::vector<std::string> axes;
    axes.reserve(dims.size());
    for (const auto& axis : dims) {
        const auto* dim = std::get_if<std::string>(&axis);
        axes.push_back(dim != nullptr ? *dim : std::to_string(std::get<std::int64_t>(axis)));
    }
    return name + "=" + std::string(attnport::name(dtype)) + "[" + reader::joined(axes, ",") + "]";
}

bool Mask::has(std::string_view kind) const { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); }

}  // namespace attnport
