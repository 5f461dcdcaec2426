// A graph that OpenVINO compiled for the CPU, and a request that runs it. For a reader that is built with OpenVINO.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <openvino/openvino.hpp>

#include <attnport/tensor.hpp>

namespace attnport::reader {

/// The plugin's word for the precision of a plan. Throws RuntimeMissing: there is none.
[[nodiscard]] std::string precision_of(const std::string& plan);

/// OpenVINO's element type of a dtype, and our word for an element type, which may be one that no bundle has.
[[nodiscard]] ov::element::Type_t ov_type(DType dtype);
[[nodiscard]] std::string word_of(const ov::element::Type& type);

/// A view of a tensor's memory.
[[nodiscard]] ov::Tensor viewed(const Input& input);

/// Compiles a graph for the CPU and reads back what was really set.
///
/// `threads`: 0 = the plugin's own choice. `where`: the file, for messages. `further`: more of the plugin's settings.
/// Throws RuntimeMissing: the CPU does not compute in the plan's precision; Error: OpenVINO refuses the graph.
[[nodiscard]] ov::CompiledModel compiled(ov::Core& core, const std::shared_ptr<ov::Model>& graph,
                                         const std::string& plan, int threads, const std::string& where,
                                         const ov::AnyMap& further = {});

/// A request of a compiled model. One call at a time.
class OpenVinoRequest {
public:
    /// Inputs and outputs by name; those that the model lacks are left out.
    OpenVinoRequest(ov::CompiledModel& made, const std::vector<std::string>& inputs,
                    std::vector<std::string> outputs);

    /// Runs inputs, all of them and in the order of their names; gives copies of the outputs in theirs.
    [[nodiscard]] std::vector<Tensor> run(const std::vector<Input>& given);

    [[nodiscard]] ov::InferRequest& request() noexcept { return request_; }

private:
    void take(const std::vector<Input>& given);
    /// Gives the request its own memory again, in place of the caller's.
    void forget() noexcept;

    using Ports = std::vector<ov::Output<const ov::Node>>;
    ov::InferRequest request_;
    Ports taken_;
    Ports given_;
    std::vector<ov::Tensor> own_;  ///< what the request has between calls, in the order of `taken_`
    std::vector<std::string> output_names_;
};

}  // namespace attnport::reader
