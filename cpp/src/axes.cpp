#include "axes.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "memory.hpp"

namespace attnport::reader {
namespace {

std::size_t product(const Shape& shape, std::size_t begin, std::size_t end) {
    const auto at = [&](std::size_t axis) { return shape.begin() + static_cast<std::ptrdiff_t>(axis); };
    return elements(Shape(at(begin), at(end)));
}

}  // namespace

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

Tensor resized_along(const Tensor& tensor, std::size_t axis, std::int64_t places) {
    return cut_along(tensor, axis, 0, std::min(tensor.shape()[axis], places), places);
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

Tensor taken_along(const Input& tensor, const std::vector<std::size_t>& rows, std::size_t axis) {
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

}  // namespace attnport::reader
