// What every runtime's session offers to a model that is open, and what it may be asked about the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <attnport/tensor.hpp>

#include "steps.hpp"

namespace attnport::reader {

/// An input or output as the model file itself has it; `shape`: none for what is open, whole or by axis.
struct Port {
    std::string name;
    std::string dtype;  ///< as `name(DType)` has it, or the runtime's own word for one that no bundle has
    std::optional<std::vector<std::optional<std::int64_t>>> shape;
};

/// What a pass of the goldens holds for: this device with this driver. `uuid`, `sm` and `driver` are a GPU's.
struct Machine {
    std::string device;
    std::string uuid;
    int sm = 0;
    std::string driver;
};

/// The processor, as Python's reader calls it.
[[nodiscard]] Machine this_cpu();

/// The first GPU and its driver; see cuda.cpp. Throws RuntimeMissing: no driver, or no GPU.
[[nodiscard]] Machine this_gpu();

/// Least and largest shape of one input in one optimization profile.
struct Range {
    Shape least;
    Shape largest;
};

/// The profile that admits every shape; of several the one that ends soonest, as it was tuned closest. `shapes` and the
/// ranges of each profile stand in the order of `inputs`. Throws FeedError: none does; names an input, its shape and
/// the ranges.
[[nodiscard]] std::size_t choose_profile(const std::vector<std::vector<Range>>& profiles,
                                         const std::vector<Port>& inputs, const std::vector<Shape>& shapes);

/// A model file that a runtime has open. `run` may be called from several threads at once.
class Session {
public:
    Session() = default;
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    virtual ~Session();

    /// Every output in the order of the contract, in the file's own dtypes. `inputs` fit the contract, stand in its
    /// order, and are on the CPU in the file's own dtypes. Throws Error and its children only.
    virtual std::vector<Tensor> run(const std::vector<Input>& inputs) = 0;

    /// As `run`, for inputs where the session computes, or on the CPU; outputs stay on its device.
    virtual std::vector<Tensor> run_device(const std::vector<Input>& inputs) = 0;

    /// Whether the model writes to its caches where an input and the output that follows it share memory.
    [[nodiscard]] virtual bool writes_in_place() const { return false; }

    /// As `run` of a session that writes in place; gives only the outputs that share no memory with an input.
    ///
    /// `shared` has for each output, in the order of the contract, the index of the input whose memory it is written
    /// to, if there is one: memory that may be written to.
    virtual std::vector<Tensor> run_in_place(const std::vector<Input>& inputs,
                                             const std::vector<std::optional<std::size_t>>& shared);

    /// Caches of one batch that the runtime itself keeps and adds to; none where it cannot. The session has to stay.
    virtual std::unique_ptr<Steps> new_steps(const Roles& roles);

    /// Gives the system what the runtime keeps between calls. Returns whether it can; nothing else changes.
    virtual bool give_back() { return false; }

    std::string provider;  ///< what the file was opened with: a provider that ONNX Runtime started, or the runtime
    std::string version;   ///< the runtime's release
    Machine machine;
    Place place = Place::Cpu;  ///< where it computes
    std::vector<Port> inputs;
    std::vector<Port> outputs;
    /// Of an engine, for each optimization profile: the ranges of its inputs, in the order of `inputs`.
    std::vector<std::vector<Range>> profiles;
};

}  // namespace attnport::reader
