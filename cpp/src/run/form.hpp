// One form that is open, with the contract's checks and casts around its session.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <attnport/model.hpp>
#include <attnport/tensor.hpp>

#include "decode/steps.hpp"
#include "format/manifest.hpp"
#include "runtimes/cache.hpp"
#include "runtimes/session.hpp"

namespace attnport::reader {

/// A form that is open; `run` and `run_device` are those of Model. The manifest has to stay.
class OpenForm {
public:
    /// Opens the form `name` of a bundle whose files were checked. A release, provider or device that does not fit is
    /// RuntimeMissing; a file that is not what the manifest says is IntegrityError; Error: the runtime refuses the file.
    OpenForm(const std::filesystem::path& folder, const Manifest& manifest, std::string name, const Options& options,
             const std::optional<CacheFolder>& cache);

    [[nodiscard]] Outputs run(const Inputs& inputs) const;
    [[nodiscard]] Outputs run_device(const Inputs& inputs) const;

    /// As `run`, for inputs on the session's device too, which have the file's dtypes. The outputs `kept` stay there, in
    /// the file's dtypes.
    [[nodiscard]] Outputs run_keeping(const Inputs& inputs, const std::vector<std::string>& kept) const;

    /// What runs a step with caches that the model writes to; none where it does not.
    [[nodiscard]] StepInPlace step() const;
    /// Caches of one batch that are added to, by the model or by its runtime; none where they have to be copied. The
    /// facts, and the form, have to stay.
    [[nodiscard]] std::unique_ptr<Steps> new_steps(const DecoderFacts& facts) const;

    [[nodiscard]] const std::string& name() const noexcept { return name_; }
    [[nodiscard]] const Form& form() const noexcept { return form_; }
    [[nodiscard]] const Session& session() const noexcept { return *session_; }

private:
    [[nodiscard]] Outputs run_step(const Inputs& inputs, const std::vector<Buffer>& buffers) const;
    [[nodiscard]] Outputs to_contract(const std::vector<const Input*>& inputs, std::vector<Tensor> found) const;

    const Manifest& manifest_;
    std::string name_;
    const Form& form_;
    std::unique_ptr<Session> session_;
    std::vector<DType> taken_;   ///< the file's dtypes of the inputs, in the contract's order
    bool casts_inputs_ = false;  ///< whether some of them are not the contract's
    bool casts_outputs_ = false;
};

}  // namespace attnport::reader
