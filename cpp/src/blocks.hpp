// Arrays that are filled from parts of others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <attnport/tensor.hpp>

#include "memory.hpp"

namespace attnport::reader {

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

}  // namespace attnport::reader
