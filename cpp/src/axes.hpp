// Tensors changed along one axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <attnport/tensor.hpp>

namespace attnport::reader {

/// Two tensors behind each other along an axis; they differ in nothing else.
[[nodiscard]] Tensor joined_along(const Tensor& first, const Tensor& second, std::size_t axis);

/// A tensor with another number of places along an axis; those that are new hold zeros.
[[nodiscard]] Tensor resized_along(const Tensor& tensor, std::size_t axis, std::int64_t places);

/// Some places of a tensor along an axis, `count` from `begin` on, in a tensor that has so many there; others hold zeros.
[[nodiscard]] Tensor cut_along(const Tensor& tensor, std::size_t axis, std::int64_t begin, std::int64_t count,
                               std::int64_t places);

/// Rows of a tensor along an axis, of which one may be there several times.
[[nodiscard]] Tensor taken_along(const Input& tensor, const std::vector<std::size_t>& rows, std::size_t axis);

}  // namespace attnport::reader
