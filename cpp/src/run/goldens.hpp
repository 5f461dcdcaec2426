// Golden inputs and outputs: whether the model computes here what it computed where it was bundled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attnport/tensor.hpp>

#include "format/manifest.hpp"

namespace attnport::reader {

/// The arrays of a safetensors file by name; `where` is what messages call the file. Throws IntegrityError where the
/// file is damaged or contradicts itself, or holds what no golden array is.
[[nodiscard]] std::map<std::string, Tensor> read_safetensors(std::string_view data, const std::string& where);

/// One output of one golden case; errors are against the float64 reference, over valid elements.
struct Result {
    std::string case_;
    std::string output;
    bool passed = false;
    std::string reason;
    std::optional<double> rms_error;
    double rms_bound = 0;
    std::optional<double> max_error;
    double max_bound = 0;
};

/// Runs one call of the form that is judged: checked inputs of the contract in, contract's outputs out.
using Call = std::function<Outputs(const Inputs&)>;

/// The arrays of `goldens.safetensors`.
class Goldens {
public:
    /// Reads the file. Throws IntegrityError when it is not what the manifest says. The manifest has to stay.
    Goldens(const std::filesystem::path& folder, const Manifest& manifest);

    /// Runs every case of the form's plan that its profiles admit and compares every output; a runtime that fails is
    /// a reason not to pass. `seen` takes each result at once. Throws Error: no profile admits a case; IntegrityError:
    /// inputs do not fit the contract; RuntimeMissing: the device cannot run it just now.
    void check(const Form& form, const Call& call, const std::function<void(const Result&)>& seen) const;

private:
    /// The inputs of a case. Throws IntegrityError where the contract does not allow them.
    [[nodiscard]] Inputs checked_inputs(const std::string& case_) const;

    const Manifest& manifest_;
    std::string path_;
    std::map<std::string, Tensor> arrays_;
};

/// Compares one output with its float64 reference; `got` null: there is none, and `problem` says why.
[[nodiscard]] Result compare(const Bound& bound, const Tensor* got, const Tensor& expected, const Tensor& valid,
                             const std::string& problem);

/// Runs the goldens on a form that was never run on its device. Throws NumbersOff: an output is over its bound; else as
/// Goldens.
void prove(const std::filesystem::path& folder, const Manifest& manifest, const std::string& form, const Call& call,
           const std::string& device);

}  // namespace attnport::reader
