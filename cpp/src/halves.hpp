// The casts between a contract's dtypes and those of a file in half precision; to nearest, ties to even.
#pragma once

#include <cstddef>

#include <attnport/tensor.hpp>

namespace attnport::reader {

/// A tensor of floating-point numbers on the CPU in another dtype; the same memory where they are one.
[[nodiscard]] Tensor cast(const Tensor& tensor, DType wanted);

/// As `cast`, of an input: new memory that the tensor owns.
[[nodiscard]] Tensor cast(const Input& input, DType wanted);

/// `count` elements of any dtype as float64.
void to_double(const void* data, DType dtype, std::size_t count, double* out);

}  // namespace attnport::reader
