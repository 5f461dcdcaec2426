// What every runtime's session offers to a model that is open, and the functions that open one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/model.hpp>
#include <attnport/tensor.hpp>

#include "decode/steps.hpp"
#include "format/manifest.hpp"

namespace attnport::reader {

class CacheFolder;

/// An input or output as the model file itself has it. `shape`: nullopt if the rank is unknown; nullopt per axis if it
/// is dynamic.
struct Port {
    std::string name;
    std::string dtype;  ///< as `name(DType)` has it, or the runtime's own word for one that no bundle has
    std::optional<std::vector<std::optional<std::int64_t>>> shape;
};

/// The device that computes, with its driver. `uuid`, `sm` and `driver` are a GPU's.
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

    /// As `run`, for inputs where the session computes, or on the CPU. Outputs for which `stays` is true stay on its
    /// device; the others come to the CPU.
    virtual std::vector<Tensor> run_device(const std::vector<Input>& inputs, const std::vector<bool>& stays) = 0;

    /// Whether the model writes to its caches where an input and the output that follows it share memory.
    [[nodiscard]] virtual bool writes_in_place() const { return false; }

    /// As `run` of a session that writes in place; gives only the outputs that share no memory with an input.
    ///
    /// `shared` has for each output, in the order of the contract, the index of the input whose memory it is written
    /// to, if there is one: memory that may be written to.
    virtual std::vector<Tensor> run_in_place(const std::vector<Input>& inputs,
                                             const std::vector<std::optional<std::size_t>>& shared);

    /// Caches of one batch that the runtime itself keeps and adds to; null where it cannot. The session has to stay.
    virtual std::unique_ptr<Steps> new_steps(const DecoderFacts& facts);

    std::string provider;  ///< what the file was opened with: a provider that ONNX Runtime started, or the runtime
    std::string version;   ///< the runtime's release
    Machine machine;
    Place place = Place::Cpu;  ///< where it computes
    bool wants_eights = false;  ///< lengths that are multiples of 8 are much quicker, or are captured as graphs
    std::vector<Port> inputs;
    std::vector<Port> outputs;
    /// Of an engine, for each optimization profile: the ranges of its inputs, in the order of `inputs`.
    std::vector<std::vector<Range>> profiles;
};

/// Each opens the form of a file whose digest was compared. A runtime that is not compiled in throws RuntimeMissing, and
/// says how to build with it. RuntimeMissing: no fitting release, provider or device; Error: the runtime refuses it.
[[nodiscard]] std::unique_ptr<Session> open_onnxruntime(const std::filesystem::path& path, const Manifest& manifest,
                                                        const Form& form, const Options& options);
[[nodiscard]] std::unique_ptr<Session> open_openvino(const std::filesystem::path& path, const Manifest& manifest,
                                                     const Form& form, const Options& options);
/// An engine that contradicts the manifest is an IntegrityError.
[[nodiscard]] std::unique_ptr<Session> open_engine(const std::filesystem::path& path, const Manifest& manifest,
                                                   const std::string& name, const std::optional<CacheFolder>& cache);

/// Whether a runtime may map the weights of a form: those of more than 256 MiB together. Others are read (FORMAT.md,
/// Changes in place).
[[nodiscard]] bool may_map(const Manifest& manifest, const Form& form);

/// The first three numbers of a version, to compare; what a build adds behind them does not count.
[[nodiscard]] std::vector<std::int64_t> release(std::string_view version);

/// Throws RuntimeMissing unless the release of a runtime is one that a form takes; `how` says how to get another.
void require_release(std::string_view runtime, std::string_view version, const Requires& wanted, std::string_view how);

}  // namespace attnport::reader
