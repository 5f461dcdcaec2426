#include "run/goldens.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <attnport/error.hpp>

#include "format/contract.hpp"
#include "format/files.hpp"
#include "format/json.hpp"
#include "format/text.hpp"
#include "run/arrays.hpp"
#include "run/feeds.hpp"

namespace attnport::reader {

namespace {

// A safetensors file is the header's length in 8 bytes, the header in JSON, and the data; the header says where in the
// data each array lies: https://huggingface.co/docs/safetensors/index#format.

constexpr std::size_t length_bytes = 8;
constexpr std::size_t max_header_bytes = std::size_t{4} << 20U;
constexpr std::size_t max_file_bytes = std::size_t{1} << 30U;  // of a file, and of an array in it
constexpr std::size_t max_rank = 32;  // what NumPy 1.26 can hold
constexpr const char* metadata = "__metadata__";

/// What the header says of one array.
struct Entry {
    std::string name;
    DType dtype = DType::Float32;
    Shape shape;
    std::uint64_t begin = 0;  ///< where its data begins and ends, behind the header
    std::uint64_t end = 0;
};

/// The dtypes of golden arrays, by the names that the format has for them.
DType dtype_of_code(std::string_view code) {
    if (code == "F64") return DType::Float64;
    if (code == "F32") return DType::Float32;
    if (code == "F16") return DType::Float16;
    if (code == "I64") return DType::Int64;
    if (code == "I32") return DType::Int32;
    return DType::Bool;
}

/// How many bytes a shape takes. Refused before that overflows. The sizes beside a 0 are limited too, since NumPy cannot
/// hold every empty array either.
std::size_t bytes_of(const Located& at, const Shape& shape, DType dtype) {
    std::size_t bytes = size_bytes(dtype);
    bool is_empty = false;
    for (const std::int64_t size : shape) {
        if (size < 0) at.fail("a size of its shape is below 0");
        if (size == 0) {
            is_empty = true;
        } else if (static_cast<std::uint64_t>(size) > max_file_bytes / bytes) {
            at.fail("its shape is larger than " + std::to_string(max_file_bytes) + " bytes");
        } else {
            bytes *= static_cast<std::size_t>(size);
        }
    }
    return is_empty ? 0 : bytes;
}

Entry array_entry_of(const Located& at) {
    at.keys({"dtype", "shape", "data_offsets"});
    const std::vector<std::int64_t> offsets = at["data_offsets"].list(&Located::integer);
    if (offsets.size() != 2 || offsets[0] < 0 || offsets[0] > offsets[1]) {
        at.fail("its data_offsets do not say where the data begins and where it ends");
    }
    Entry entry;
    entry.dtype = dtype_of_code(at["dtype"].one_of({"F64", "F32", "F16", "I64", "I32", "BOOL"}));
    entry.shape = at["shape"].list(&Located::integer);
    entry.begin = static_cast<std::uint64_t>(offsets[0]);
    entry.end = static_cast<std::uint64_t>(offsets[1]);
    if (entry.shape.size() > max_rank) at.fail("its shape has more than " + std::to_string(max_rank) + " sizes");
    if (bytes_of(at, entry.shape, entry.dtype) != entry.end - entry.begin) at.fail("its shape does not fit its data");
    return entry;
}

std::vector<Entry> entries_of(std::string_view header, const std::string& where) {
    if (header.substr(0, 1) != "{") throw IntegrityError(where + ": it is no JSON object.");
    Json value = parse(header, where);
    if (value.count(metadata) != 0) {
        const Json others = value[metadata];
        static_cast<void>(Located(others, where + "." + metadata).map(&Located::text));
        value.erase(metadata);
    }
    std::vector<Entry> entries;
    for (auto& [name, entry] : Located(value, where).map(array_entry_of)) {
        entries.push_back(std::move(entry));
        entries.back().name = name;
    }
    return entries;
}

/// Throws unless the arrays take all the data, each of them its own.
void check_apart(std::vector<Entry> entries, std::uint64_t data_bytes, const std::string& where) {
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    std::uint64_t at = 0;
    for (const Entry& entry : entries) {
        if (entry.begin != at) {
            throw IntegrityError(where + ": " + quoted(entry.name) + " begins at " + std::to_string(entry.begin) +
                                 "; expected " + std::to_string(at) + ": a gap or an overlap.");
        }
        at = entry.end;
    }
    if (at != data_bytes) {
        throw IntegrityError(where + ": got " + std::to_string(data_bytes) + " bytes of data; its arrays take " +
                             std::to_string(at) + ".");
    }
}

/// A tensor with memory of its own: in the file its data need not be aligned.
Tensor tensor_of(const Entry& entry, std::string_view data, const std::string& where) {
    const std::string_view bytes = data.substr(entry.begin, entry.end - entry.begin);
    const auto is_odd = [](char byte) { return byte != 0 && byte != 1; };
    if (entry.dtype == DType::Bool && std::any_of(bytes.begin(), bytes.end(), is_odd)) {
        throw IntegrityError(where + ": " + quoted(entry.name) + ": a boolean that is neither 0 nor 1.");
    }
    auto owned = std::make_shared<std::vector<char>>(std::max<std::size_t>(bytes.size(), 1));
    std::copy(bytes.begin(), bytes.end(), owned->begin());
    return {entry.name, entry.dtype, entry.shape, std::shared_ptr<const void>(owned, owned->data())};
}

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
    bool in_plan = false;
    for (const Bound& bound : manifest.goldens.bounds) {
        if (bound.plan != form.plan) continue;
        in_plan = true;
        if (admitted(manifest, form, arrays, bound.case_)) found.push_back(&bound);
    }
    if (!in_plan) throw Error("no golden case is in " + form.plan + ", the precision of " + form.file + ".");
    if (found.empty()) throw Error("no golden case in " + form.plan + " has sizes that " + form.file + " takes.");
    if (std::all_of(found.begin(), found.end(), [&arrays](const Bound* bound) {
            return arrays.at(part(bound->case_, "out", bound->output)).size() == 0;
        })) {
        throw Error("no golden case in " + form.plan + " has an output with an element to compare.");
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

std::map<std::string, Tensor> read_safetensors(std::string_view data, const std::string& where) {
    std::uint64_t header_bytes = 0;
    for (std::size_t at = std::min(length_bytes, data.size()); at-- > 0;) {
        header_bytes = header_bytes << 8U | static_cast<unsigned char>(data[at]);
    }
    if (data.size() < length_bytes || header_bytes > std::min(max_header_bytes, data.size() - length_bytes)) {
        throw IntegrityError(where + ": it is cut short, or its header is longer than " +
                             std::to_string(max_header_bytes) + " bytes.");
    }
    const std::vector<Entry> entries = entries_of(data.substr(length_bytes, header_bytes), where + ": header");
    data.remove_prefix(length_bytes + header_bytes);
    check_apart(entries, data.size(), where);
    std::map<std::string, Tensor> tensors;
    for (const Entry& entry : entries) tensors.emplace(entry.name, tensor_of(entry, data, where));
    return tensors;
}

Goldens::Goldens(const std::filesystem::path& folder, const Manifest& manifest)
    : manifest_(manifest),
      path_((folder / manifest.goldens.file).string()),
      arrays_(read_safetensors(read_bundled(path_, max_file_bytes), path_)) {
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
