// Memory for tensors that the library makes, and the casts between a contract's dtypes and those of a file in half
// precision: to nearest, ties to even.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/tensor.hpp>

namespace attnport::reader {

/// `bytes` bytes of zeros, aligned for every dtype.
[[nodiscard]] inline std::shared_ptr<std::byte> allocate(std::size_t bytes) {
    const auto owner = std::make_shared<std::vector<std::byte>>(bytes);
    return {owner, owner->data()};
}

/// A tensor of floating-point numbers on the CPU in another dtype; the same memory where they are one.
[[nodiscard]] Tensor cast(const Tensor& tensor, DType wanted);

/// As `cast`, of an input: always new memory.
[[nodiscard]] Tensor cast(const Input& input, DType wanted);

/// Whole numbers below 2^53 as a tensor for an input, in its dtype.
[[nodiscard]] Tensor tensor_of(const TensorSpec& spec, Shape shape, const std::vector<std::int64_t>& values);

/// `count` elements of any dtype as float64.
void to_double(const void* data, DType dtype, std::size_t count, double* out);

}  // namespace attnport::reader
