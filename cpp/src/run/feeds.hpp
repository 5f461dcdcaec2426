// Inputs checked against the contract before they reach the runtime, and masks made from lengths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <attnport/contract.hpp>
#include <attnport/tensor.hpp>

namespace attnport::reader {

/// Checks inputs against the declared ones and returns pointers to them in the contract's order.
///
/// `dtypes`: of the file, where they are not to be the contract's. Values are looked at on the CPU alone. Throws
/// FeedError: a missing, unknown or repeated name, a wrong dtype, rank, size or value; names the tensor, got, expected.
[[nodiscard]] std::vector<const Input*> check_inputs(const IO& io, const Inputs& inputs,
                                                     const std::map<std::string, DType>* dtypes = nullptr);

/// Checks the shapes of outputs, which stand in the contract's order: a file need not tell them before it runs.
///
/// `inputs` are those of this call, from check_inputs, and give the sizes of named dims; one that is in outputs alone is
/// as in the first. Throws Error: another rank, fixed size, or size of a named dim; names output, got and expected.
void check_outputs(const IO& io, const std::vector<const Input*>& inputs, const std::vector<Tensor>& outputs);

/// As check_outputs, of the output at `index` alone. Of the inputs, those that do not give its sizes may be null.
void check_output(const IO& io, const std::vector<const Input*>& inputs, std::size_t index, const Tensor& output);

/// Adds a tensor; one of that name that is there already gives its place to it.
void put(std::vector<Tensor>& tensors, Tensor tensor);

/// Every input that says what is padding; see Model::masks. `left`: it stands before an item, and not behind it.
[[nodiscard]] std::vector<Tensor> padding_masks(const IO& io, const std::vector<std::int64_t>& lengths,
                                                std::optional<std::int64_t> size, bool left = false);

}  // namespace attnport::reader
