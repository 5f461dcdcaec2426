#include "run/goldens.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <attnport/error.hpp>

#include "format/contract.hpp"
#include "format/files.hpp"
#include "format/text.hpp"
#include "run/feeds.hpp"
#include "run/arrays.hpp"
#include "run/safetensors.hpp"

namespace attnport::reader {

namespace {

using Arrays = std::map<std::string, Tensor>;

std::string part(const std::string& case_, const char* kind, const std::string& tensor) {
    return case_ + "/" + kind + "/" + tensor;
}

/// The dtype of every array: inputs as the contract has them, references in float64.
std::map<std::string, DType> wanted_dtypes(const Manifest& manifest) {
    std::map<std::string, DType> found;
    for (const Bound& bound : manifest.goldens.bounds) {
        for (const TensorSpec& spec : manifest.io.inputs) found.emplace(part(bound.case_, "in", spec.name), spec.dtype);
    }
    for (const Bound& bound : manifest.goldens.bounds) {
        found.emplace(part(bound.case_, "out", bound.output), DType::Float64);
        found.emplace(part(bound.case_, "valid", bound.output), DType::Bool);
    }
    return found;
}

/// The first name, in order, that only one of the two has.
std::optional<std::string> on_one_side(const std::map<std::string, DType>& wanted, const Arrays& arrays) {
    std::set<std::string> found;
    for (const auto& [name, dtype] : wanted) {
        if (arrays.count(name) == 0) found.insert(name);
    }
    for (const auto& [name, array] : arrays) {
        if (wanted.count(name) == 0) found.insert(name);
    }
    if (found.empty()) return std::nullopt;
    return *found.begin();
}

bool admitted(const Manifest& manifest, const Form& form, const Arrays& arrays, const std::string& case_) {
    std::map<std::string, std::int64_t> sizes;
    for (const TensorSpec& spec : manifest.io.inputs) {
        const Shape& shape = arrays.at(part(case_, "in", spec.name)).shape();
        for (std::size_t axis = 0; axis < std::min(shape.size(), spec.dims.size()); ++axis) {
            if (const auto* dim = std::get_if<std::string>(&spec.dims[axis])) sizes.insert_or_assign(*dim, shape[axis]);
        }
    }
    const auto admits_it = [&sizes](const Profile& profile) { return admits(profile, sizes); };
    return form.profiles.empty() || std::any_of(form.profiles.begin(), form.profiles.end(), admits_it);
}

/// The bounds of a form's plan, of the cases that one of its profiles admits.
std::vector<const Bound*> bounds_of(const Manifest& manifest, const Form& form, const Arrays& arrays) {
    std::vector<const Bound*> found;
    for (const Bound& bound : manifest.goldens.bounds) {
        if (bound.plan == form.plan && admitted(manifest, form, arrays, bound.case_)) found.push_back(&bound);
    }
    if (found.empty()) {
        throw Error("there is no golden case of plan " + form.plan + " in the profiles of " + form.file + ".");
    }
    if (std::all_of(found.begin(), found.end(), [&arrays](const Bound* bound) {
            return arrays.at(part(bound->case_, "out", bound->output)).size() == 0;
        })) {
        throw Error("no golden case of plan " + form.plan + " has an output with an element to compare.");
    }
    return found;
}

/// Elements as float64, whatever their dtype.
std::vector<double> doubles(const Tensor& tensor) {
    std::vector<double> found(tensor.size());
    if (!found.empty()) to_double(tensor.data(), tensor.dtype(), found.size(), found.data());
    return found;
}

/// Whether `valid` is over the leading dims of `expected`.
bool leads(const Shape& valid, const Shape& expected) {
    return valid.size() <= expected.size() && std::equal(valid.begin(), valid.end(), expected.begin());
}

struct Errors {
    double rms = 0;
    double largest = 0;
};

/// The errors over valid elements; zero without any. A square or a sum that no double holds is Inf, which
/// is over every bound, and NaN stays NaN.
Errors errors_of(const std::vector<double>& got, const double* expected, const bool* valid, std::size_t inner) {
    long double sum = 0;
    double largest = 0;
    std::size_t count = 0;
    for (std::size_t index = 0; index < got.size(); ++index) {
        if (!valid[index / inner]) continue;
        const double error = std::fabs(got[index] - expected[index]);
        sum += error * error;
        if (error > largest || std::isnan(error)) largest = error;
        if (std::isnan(largest)) break;
        ++count;
    }
    if (std::isnan(largest)) return {largest, largest};
    if (count == 0) return {};
    return {std::sqrt(static_cast<double>(sum) / static_cast<double>(count)), largest};
}

/// What is wrong before any number is compared; "" = nothing.
std::string problem_of(const Tensor& got, const std::vector<double>& values, const Tensor& expected,
                       const Tensor& valid) {
    if (got.shape() != expected.shape() || !leads(valid.shape(), expected.shape())) {
        return "got shape " + listed(got.shape()) + "; expected " + listed(expected.shape());
    }
    const auto bad = std::count_if(values.begin(), values.end(), [](double value) { return !std::isfinite(value); });
    if (bad != 0) return std::to_string(bad) + " elements are NaN or Inf";
    const bool* flags = valid.data<bool>();
    // An output that is empty at these sizes has its shape alone.
    if (expected.size() != 0 && std::none_of(flags, flags + valid.size(), [](bool flag) { return flag; })) {
        return "no element to compare";
    }
    return "";
}

}  // namespace

Goldens::Goldens(const std::filesystem::path& folder, const Manifest& manifest)
    : manifest_(manifest),
      path_((folder / manifest.goldens.file).string()),
      arrays_(read_safetensors(read_bundled(path_, max_safetensors_bytes), path_)) {
    const std::map<std::string, DType> wanted = wanted_dtypes(manifest);
    if (const auto differing = on_one_side(wanted, arrays_)) {
        throw IntegrityError(path_ + ": " + reader::quoted(*differing) +
                             " is on one side only of the manifest and the file.");
    }
    for (const auto& [key, dtype] : wanted) {
        const DType got = arrays_.at(key).dtype();
        if (got == dtype) continue;
        throw IntegrityError(path_ + ": " + reader::quoted(key) + ": got dtype " + std::string(name(got)) +
                             "; expected " + std::string(name(dtype)) + ".");
    }
}

Inputs Goldens::checked_inputs(const std::string& case_) const {
    Inputs found;
    for (const TensorSpec& spec : manifest_.io.inputs) {
        const Tensor& tensor = arrays_.at(part(case_, "in", spec.name));
        found.emplace_back(spec.name, tensor.data(), tensor.dtype(), tensor.shape());
    }
    try {
        static_cast<void>(check_inputs(manifest_.io, found));
    } catch (const FeedError& err) {
        throw IntegrityError(path_ + ": case " + case_ + ": " + err.what());
    }
    return found;
}

void Goldens::check(const Form& form, const Call& call, const std::function<void(const Result&)>& seen) const {
    std::optional<Outputs> outputs;
    std::string problem;
    const std::string* last = nullptr;
    for (const Bound* bound : bounds_of(manifest_, form, arrays_)) {
        if (last == nullptr || bound->case_ != *last) {
            last = &bound->case_;
            outputs.reset();
            problem.clear();
            const Inputs inputs = checked_inputs(bound->case_);
            try {
                outputs = call(inputs);
            } catch (const RuntimeMissing&) {
                throw;
            } catch (const Error& err) {
                problem = err.what();
            }
        }
        const Tensor* got = nullptr;
        if (outputs) {
            const auto is_it = [bound](const Tensor& tensor) { return tensor.name() == bound->output; };
            const auto found = std::find_if(outputs->begin(), outputs->end(), is_it);
            if (found != outputs->end()) got = &*found;
        }
        seen(compare(*bound, got, arrays_.at(part(bound->case_, "out", bound->output)),
                     arrays_.at(part(bound->case_, "valid", bound->output)), problem));
    }
}

Result compare(const Bound& bound, const Tensor* got, const Tensor& expected, const Tensor& valid,
               const std::string& problem) {
    Result found{bound.case_, bound.output, false, problem, std::nullopt, bound.rms_bound, std::nullopt,
                 bound.max_bound};
    if (got == nullptr) {
        if (problem.empty()) found.reason = "the output is missing";
        return found;
    }
    const std::vector<double> values = doubles(*got);
    found.reason = problem_of(*got, values, expected, valid);
    if (found.reason.empty()) {
        const Errors errors =
            errors_of(values, expected.data<double>(), valid.data<bool>(),
                      expected.size() / std::max<std::size_t>(valid.size(), 1));
        found.rms_error = errors.rms;
        found.max_error = errors.largest;
        // Written so that NaN, from a reference that is not finite, does not pass.
        if (!(errors.rms <= bound.rms_bound)) {
            found.reason = "RMS error " + scientific(errors.rms, 2) + " is over its bound " +
                           scientific(bound.rms_bound, 2);
        } else if (!(errors.largest <= bound.max_bound)) {
            found.reason = "max error " + scientific(errors.largest, 2) + " is over its bound " +
                           scientific(bound.max_bound, 2);
        }
    }
    found.passed = found.reason.empty();
    return found;
}

void prove(const std::filesystem::path& folder, const Manifest& manifest, const std::string& form, const Call& call,
           const std::string& device) {
    std::string problem = "there is no golden case";
    bool passed = false;  // and not true of a run that gave no result
    bool failed = false;
    Goldens(folder, manifest).check(manifest.form(form), call, [&](const Result& result) {
        passed = passed || result.passed;
        if (!result.passed && !failed) problem = result.case_ + ", " + result.output + ": " + result.reason;
        failed = failed || !result.passed;
    });
    if (failed || !passed) throw NumbersOff(form + " does not pass the goldens on " + device + ": " + problem + ".");
}

}  // namespace attnport::reader
