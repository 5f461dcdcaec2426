#include "run/form.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <attnport/error.hpp>

#include "format/expression.hpp"
#include "format/text.hpp"
#include "run/feeds.hpp"
#include "run/arrays.hpp"

namespace attnport::reader {
namespace {

FeedError misplaced(const Input& input, const std::string& words) {
    return FeedError("input " + reader::quoted(input.name()) + ": got a tensor on cuda; " + words);
}

/// Where a tensor of a name stands; it is there.
std::size_t position(const std::vector<TensorSpec>& specs, const std::string& name) {
    return static_cast<std::size_t>(find_named(specs, name) - specs.data());
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

/// The size of an axis with all dims at their least or largest; -1 where an expression has no value there.
std::int64_t stated(const std::vector<Dim>& dims, const Axis& axis, std::int64_t Dim::*which) {
    if (const auto* fixed = std::get_if<std::int64_t>(&axis)) return *fixed;
    const auto size_of = [&](std::string_view name) -> std::optional<std::int64_t> {
        const Dim* const dim = find_named(dims, name);
        return dim == nullptr ? std::nullopt : std::optional(dim->*which);
    };
    const auto& text = std::get<std::string>(axis);
    const auto size = size_of(text);
    return size ? *size : value_of(text, size_of).value_or(-1);
}

void check_port(const IO& io, const TensorSpec& spec, DType dtype, const Port& port, const std::string& where) {
    const auto refuse = [&](const std::string& got, std::string_view expected) {
        throw IntegrityError(where + ": tensor " + reader::quoted(spec.name) + " " + got + "; the manifest says " +
                             std::string(expected) + ".");
    };
    if (port.dtype != name(dtype)) refuse("is " + shown(port.dtype), name(dtype));
    if (!port.shape) return;
    if (port.shape->size() != spec.dims.size()) refuse("has rank " + std::to_string(port.shape->size()), spec.text());
    for (std::size_t axis = 0; axis < spec.dims.size(); ++axis) {
        const auto size = (*port.shape)[axis];
        // The largest size that a named dim takes cannot be read off a file: there the manifest has to be believed.
        const auto is_fixed_at = [&](auto which) { return stated(io.dims, spec.dims[axis], which) == *size; };
        if (size && !(is_fixed_at(&Dim::min) && is_fixed_at(&Dim::max))) {
            refuse("has size " + std::to_string(*size) + " on axis " + std::to_string(axis), spec.text());
        }
    }
}

void check_side(const IO& io, const Form& form, const std::string& kind, const std::vector<TensorSpec>& specs,
                const std::vector<Port>& ports, const std::string& where) {
    std::map<std::string, const Port*> found;
    for (const auto& port : ports) found[port.name] = &port;
    std::set<std::string> names;
    std::vector<std::string> expected;
    for (const auto& spec : specs) {
        names.insert(spec.name);
        expected.push_back(spec.name);
    }
    std::vector<std::string> got;
    got.reserve(found.size());
    bool same = found.size() == ports.size() && found.size() == names.size();
    for (const auto& item : found) {
        if (!is_utf8(item.first)) {
            throw IntegrityError(where + ": the name of an input or output is no UTF-8.");
        }
        same = same && names.count(item.first) != 0;
        got.push_back(shown(item.first));
    }
    if (!same) {
        throw IntegrityError(where + " has the " + kind + " " + (got.empty() ? "none" : joined(got)) +
                             "; the manifest says " + joined(expected) + ".");
    }
    for (const auto& spec : specs) {
        check_port(io, spec, form.dtypes.at(spec.name), *found[spec.name], where);
    }
}

void check_profile(const IO& io, const Profile& profile, const Session& session, std::size_t index,
                   const std::string& where) {
    for (const auto& spec : io.inputs) {
        Range wanted;
        for (const auto& axis : spec.dims) {
            wanted.least.push_back(stated(profile.dims, axis, &Dim::min));
            wanted.largest.push_back(stated(profile.dims, axis, &Dim::max));
        }
        Range got;
        for (std::size_t port = 0; port < session.inputs.size() && port < session.profiles[index].size(); ++port) {
            if (session.inputs[port].name == spec.name) got = session.profiles[index][port];
        }
        if (got.least == wanted.least && got.largest == wanted.largest) continue;
        throw IntegrityError(where + ": profile " + std::to_string(index) + " takes " + reader::quoted(spec.name) +
                             " from " + listed(got.least) + " to " + listed(got.largest) + "; the manifest says " +
                             listed(wanted.least) + " to " + listed(wanted.largest) + ".");
    }
}

void check_ports(const IO& io, const Form& form, const Session& session, const std::string& where) {
    check_side(io, form, "inputs", io.inputs, session.inputs, where);
    check_side(io, form, "outputs", io.outputs, session.outputs, where);
}

void check_profiles(const IO& io, const Form& form, const Session& session, const std::string& where) {
    if (session.profiles.size() != form.profiles.size()) {
        throw IntegrityError(where + " has " + std::to_string(session.profiles.size()) +
                             " optimization profiles; the manifest says " + std::to_string(form.profiles.size()) + ".");
    }
    for (std::size_t index = 0; index < form.profiles.size(); ++index) {
        check_profile(io, form.profiles[index], session, index, where);
    }
}

std::unique_ptr<Session> open_session(const std::filesystem::path& folder, const Manifest& manifest,
                                      const std::string& name, const Options& options,
                                      const std::optional<CacheFolder>& cache) {
    const Form& form = manifest.form(name);
    const std::filesystem::path path = folder / form.file;
    std::unique_ptr<Session> session;
    if (form.is_engine()) {
        session = open_engine(path, manifest, name, cache);
    } else if (form.runtime == "openvino") {
        session = open_openvino(path, manifest, form, options);
    } else {
        session = open_onnxruntime(path, manifest, form, options);
    }
    check_ports(manifest.io, form, *session, path.string());
    if (form.is_engine()) check_profiles(manifest.io, form, *session, path.string());
    return session;
}

}  // namespace

OpenForm::OpenForm(const std::filesystem::path& folder, const Manifest& manifest, std::string name,
                   const Options& options, const std::optional<CacheFolder>& cache)
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
        auto outputs = session_->run_device(given, std::vector<bool>(manifest_.io.outputs.size(), true));
        check_outputs(manifest_.io, found, outputs);
        return Outputs(std::move(outputs));
    });
}

Outputs OpenForm::run_keeping(const Inputs& inputs, const std::vector<std::string>& kept) const {
    std::vector<Tensor> made;
    Inputs own;
    made.reserve(inputs.size());  // views of its tensors follow
    own.reserve(inputs.size());
    for (const Input& input : inputs) {
        const auto dtype = form_.dtypes.find(std::string(input.name()));
        if (input.place() != Place::Cpu || dtype == form_.dtypes.end() || dtype->second == input.dtype()) {
            own.push_back(input);
            continue;
        }
        made.push_back(cast(input, dtype->second));
        own.emplace_back(made.back());
    }
    const auto found = check_inputs(manifest_.io, own, &form_.dtypes);
    std::vector<Input> given;
    given.reserve(found.size());
    for (const Input* input : found) given.push_back(*input);
    std::vector<bool> stays;
    for (const TensorSpec& spec : manifest_.io.outputs) {
        stays.push_back(std::find(kept.begin(), kept.end(), spec.name) != kept.end());
    }
    return guarded(form_, [&] {
        auto outputs = session_->run_device(given, stays);
        check_outputs(manifest_.io, found, outputs);
        for (std::size_t index = 0; index < outputs.size(); ++index) {
            if (!stays[index]) outputs[index] = cast(outputs[index], manifest_.io.outputs[index].dtype);
        }
        return Outputs(std::move(outputs));
    });
}

StepInPlace OpenForm::step() const {
    if (!session_->writes_in_place() || casts_inputs_ || casts_outputs_) return nullptr;
    return [this](const Inputs& inputs, const std::vector<Buffer>& buffers) { return run_step(inputs, buffers); };
}

std::unique_ptr<Steps> OpenForm::new_steps(const DecoderFacts& facts) const {
    if (StepInPlace writes = step()) return std::make_unique<Buffers>(std::move(writes), facts);
    if (session_->place != Place::Cpu) {
        if (!facts.returns_whole_caches || facts.has_window) return nullptr;
        const auto run = [this](const Inputs& inputs, const auto& kept) { return run_keeping(inputs, kept); };
        return std::make_unique<Carried>(run, facts);
    }
    if (casts_inputs_ || casts_outputs_) return nullptr;
    return guarded(form_, [&] { return session_->new_steps(facts); });
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
