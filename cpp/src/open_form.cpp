#include "open_form.hpp"

#include <algorithm>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include <attnport/error.hpp>

#include "feeds.hpp"
#include "halves.hpp"
#include "opening.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

FeedError misplaced(const Input& input, const std::string& words) {
    return FeedError("input " + reader::quoted(input.name()) + ": got a tensor on cuda; " + words);
}

/// Where a tensor of a name stands; it is there.
std::size_t position(const std::vector<TensorSpec>& specs, const std::string& name) {
    const auto found = std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& one) { return one.name == name; });
    return static_cast<std::size_t>(found - specs.begin());
}

/// Calls a session; what it throws beside Error, such as std::bad_alloc, leaves as the runtime's failure.
template <class Work> auto guarded(const Form& form, const Work& work) {
    try {
        return work();
    } catch (const Error&) {
        throw;
    } catch (const std::exception& err) {
        throw Error(form.runtime + " failed: " + escaped(err.what()));
    }
}

/// `Steps` of a session, with the contract's checks around them.
class Checked final : public Steps {
public:
    Checked(const IO& io, const Form& form, const Roles& roles, std::unique_ptr<Steps> steps)
        : io_(io), form_(form), roles_(roles), steps_(std::move(steps)) {}

    void begin(std::vector<Tensor> caches) override {
        guarded(form_, [&] { steps_->begin(std::move(caches)); });
    }

    Outputs run(Inputs inputs) override {
        const auto found = check_values(io_, inputs);
        return guarded(form_, [&] {
            Outputs outputs = steps_->run(inputs);
            const std::string& scores = roles_.logits->name;
            check_output(io_, found, position(io_.outputs, scores), outputs.at(scores));
            return outputs;
        });
    }

    void take(const std::vector<std::size_t>& texts) override { steps_->take(texts); }

    void drop(std::int64_t count) override {
        guarded(form_, [&] { steps_->drop(count); });
    }

private:
    const IO& io_;
    const Form& form_;
    const Roles& roles_;
    std::unique_ptr<Steps> steps_;
};

}  // namespace

OpenForm::OpenForm(const std::filesystem::path& folder, const Manifest& manifest, std::string name,
                   const Options& options, const std::optional<Cache>& cache)
    : manifest_(manifest),
      name_(std::move(name)),
      form_(manifest.form(name_)),
      session_(open_session(folder, manifest, name_, options, cache)) {
    for (const auto& spec : manifest_.io.inputs) {
        taken_.push_back(form_.dtypes.at(spec.name));
        casts_inputs_ = casts_inputs_ || taken_.back() != spec.dtype;
    }
    for (const auto& spec : manifest_.io.outputs) {
        casts_outputs_ = casts_outputs_ || form_.dtypes.at(spec.name) != spec.dtype;
    }
}

bool OpenForm::to_be_proved() const {
    return form_.proof != "device" || (form_.provider && session_->provider != *form_.provider);
}

Outputs OpenForm::run(const Inputs& inputs) const {
    const auto found = check_inputs(manifest_.io, inputs);
    bool in_order = true;
    for (std::size_t index = 0; index < found.size(); ++index) {
        if (found[index]->place() != Place::Cpu) throw misplaced(*found[index], "run takes tensors on the cpu.");
        in_order = in_order && found[index] == &inputs[index];
    }
    return guarded(form_, [&] {
        // As a rule the caller's own inputs are what the session takes, and nothing is copied.
        if (in_order && !casts_inputs_) return to_contract(found, session_->run(inputs));
        std::vector<Tensor> made;
        std::vector<Input> given;
        made.reserve(found.size());  // views of its tensors follow
        given.reserve(found.size());
        for (std::size_t index = 0; index < found.size(); ++index) {
            if (taken_[index] == found[index]->dtype()) {
                given.push_back(*found[index]);
                continue;
            }
            made.push_back(cast(*found[index], taken_[index]));
            given.emplace_back(made.back());
        }
        return to_contract(found, session_->run(given));
    });
}

Outputs OpenForm::run_device(const Inputs& inputs) const {
    const auto found = check_inputs(manifest_.io, inputs, &form_.dtypes);
    std::vector<Input> given;
    given.reserve(found.size());
    for (const Input* input : found) {
        if (input->place() != Place::Cpu && input->place() != session_->place) {
            throw misplaced(*input, "the model computes on cpu.");
        }
        given.push_back(*input);
    }
    return guarded(form_, [&] {
        auto outputs = session_->run_device(given);
        check_outputs(manifest_.io, found, outputs);
        return Outputs(std::move(outputs));
    });
}

StepInPlace OpenForm::step() const {
    if (!session_->writes_in_place() || casts_inputs_ || casts_outputs_) return nullptr;
    return [this](const Inputs& inputs, const std::vector<Buffer>& buffers) { return run_step(inputs, buffers); };
}

std::unique_ptr<Steps> OpenForm::new_steps(const Roles& roles) const {
    if (StepInPlace writes = step()) return std::make_unique<Buffers>(std::move(writes), roles);
    if (casts_inputs_ || casts_outputs_) return nullptr;
    std::unique_ptr<Steps> kept = guarded(form_, [&] { return session_->new_steps(roles); });
    if (kept == nullptr) return nullptr;
    return std::make_unique<Checked>(manifest_.io, form_, roles, std::move(kept));
}

Outputs OpenForm::run_step(const Inputs& inputs, const std::vector<Buffer>& buffers) const {
    const auto found = check_inputs(manifest_.io, inputs);
    std::vector<Input> given;
    given.reserve(found.size());
    for (const Input* input : found) given.push_back(*input);
    const auto& outputs = manifest_.io.outputs;
    std::vector<std::optional<std::size_t>> shared(outputs.size());
    for (const Buffer& buffer : buffers) {
        const auto input = position(manifest_.io.inputs, buffer.input);
        shared.at(position(outputs, buffer.output)) = input;
        given.at(input) = Input(buffer.input, buffer.memory.data(), buffer.memory.dtype(), buffer.memory.shape());
    }
    return guarded(form_, [&] {
        std::vector<Tensor> others = session_->run_in_place(given, shared);
        for (const Tensor& one : others) check_output(manifest_.io, found, position(outputs, one.name()), one);
        return Outputs(std::move(others));
    });
}

Outputs OpenForm::to_contract(const std::vector<const Input*>& inputs, std::vector<Tensor> found) const {
    check_outputs(manifest_.io, inputs, found);
    if (casts_outputs_) {
        for (std::size_t index = 0; index < found.size(); ++index) {
            found[index] = cast(found[index], manifest_.io.outputs[index].dtype);
        }
    }
    return Outputs(std::move(found));
}

}  // namespace attnport::reader
