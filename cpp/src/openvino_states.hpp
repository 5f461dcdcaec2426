// Caches as states of a model in OpenVINO, which then adds to them in place. For a reader that is built with OpenVINO.
//
// A cache, an input and the output that follows it, becomes a variable of the model: it is read, its rows are put into
// their order by the input `beam_idx`, and what follows is assigned. The CPU plugin has a kernel of attention for this
// pattern, which keeps the keys and values of earlier tokens where they are.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include <openvino/openvino.hpp>

#include "roles.hpp"
#include "steps.hpp"

namespace attnport::reader {

/// Makes the caches of a decoder's batches; the model with its caches as states is compiled with the first. Its calls
/// from several threads take turns.
class OpenVinoStates {
public:
    /// Keeps the graph if it has caches; it is used for nothing else. The others are as of `compiled`.
    OpenVinoStates(ov::Core core, std::shared_ptr<ov::Model> graph, std::string plan, int threads, std::string where);

    /// The caches of one batch; none of a model whose caches cannot be states. Throws as `compiled`.
    [[nodiscard]] std::unique_ptr<Steps> made(const Roles& roles);

    /// Frees the pool and what was compiled for sizes.
    void give_back();

private:
    ov::Core core_;
    std::shared_ptr<ov::Model> graph_;
    std::string plan_;
    int threads_;
    std::string where_;
    ov::CompiledModel made_;
    std::mutex lock_;
};

}  // namespace attnport::reader
