#include "manifest_decode.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <tuple>

#include "contract.hpp"
#include "decode.hpp"
#include "manifest_rules.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

// A form as it is written: dtypes are any text until the contract is known.
struct WrittenForm {
    Form form;
    Ordered<std::string> dtypes;
};

std::vector<TensorSpec> tensors(const IO& io) {
    std::vector<TensorSpec> all = io.inputs;
    all.insert(all.end(), io.outputs.begin(), io.outputs.end());
    return all;
}

std::optional<DType> float_dtype(std::string_view text) {
    for (const auto dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64}) {
        if (name(dtype) == text) return dtype;
    }
    return std::nullopt;
}

// The dtype of one tensor in the file: the contract's, or another floating-point one.
DType file_dtype(const WrittenForm& written, const TensorSpec& spec) {
    const auto* got = written.dtypes.find(spec.name);
    if (got != nullptr && *got == name(spec.dtype)) return spec.dtype;
    const auto in_file = got == nullptr ? std::nullopt : float_dtype(*got);
    if (in_file && float_dtype(name(spec.dtype))) return *in_file;
    throw std::invalid_argument(written.form.file + ": " + quoted(spec.name) + " is " + (got ? *got : "None") +
                                " in the file; the contract says " + std::string(name(spec.dtype)));
}

// A form against the contract.
Form fitted(WrittenForm written, const IO& io) {
    Form form = std::move(written.form);
    written.form.file = form.file;
    for (const auto& spec : tensors(io)) form.dtypes.add(spec.name, file_dtype(written, spec));
    if (written.dtypes.size() != form.dtypes.size()) {
        throw std::invalid_argument(form.file + ": there are dtypes of what is no input or output");
    }
    for (const auto& profile : form.profiles) check(profile, io);
    return form;
}

using GoldenOutput = std::tuple<std::string, std::string, std::string>;  // plan, case, output

[[noreturn]] void refuse_one_sided(const GoldenOutput& place) {
    throw std::invalid_argument("goldens: the bound of " + in_case(std::get<1>(place), std::get<2>(place)) + ", plan " +
                                std::get<0>(place) +
                                " is on one side only of the forms' outputs and plans and the list of bounds");
}

// One bound for every case, output and plan, and none for anything else.
void check(const GoldenRecord& goldens, const std::vector<TensorSpec>& outputs, const std::set<std::string>& plans) {
    std::set<GoldenOutput> found;
    std::set<std::string> cases;
    std::set<std::string> names;
    for (const auto& bound : goldens.bounds) {
        found.emplace(bound.plan, bound.case_, bound.output);
        cases.insert(bound.case_);
    }
    for (const auto& output : outputs) names.insert(output.name);
    if (cases.empty()) throw std::invalid_argument("goldens: there is no golden case");
    if (found.size() != goldens.bounds.size()) throw std::invalid_argument("goldens: a bound is there twice");
    // Both sides in one order, side by side up to the first that differs: all that is wanted may be more than fits.
    auto next = found.begin();
    for (const auto& plan : plans) {
        for (const auto& case_ : cases) {
            for (const auto& name : names) {
                GoldenOutput wanted(plan, case_, name);
                if (next == found.end() || wanted < *next) refuse_one_sided(wanted);
                if (*next < wanted) refuse_one_sided(*next);
                ++next;
            }
        }
    }
    if (next != found.end()) refuse_one_sided(*next);
}

template <class T> std::vector<std::string> keys(const Ordered<T>& values) {
    std::vector<std::string> names;
    names.reserve(values.size());
    for (const auto& [name, value] : values) names.push_back(name);
    return names;
}

template <class T> std::vector<T> sorted(std::vector<T> values) {
    std::sort(values.begin(), values.end());
    return values;
}

void check_used(const Manifest& manifest, const std::vector<std::string>& used) {
    for (const auto& name : used) {
        if (!manifest.files.has(name)) {
            throw std::invalid_argument(quoted(name) + " is used, but not among the files");
        }
    }
}

// The rules between the parts.
void complete(Manifest& manifest, const Ordered<WrittenForm>& forms) {
    const auto names = keys(manifest.files);
    check_names(names);
    check_reader(names);
    std::vector<std::string> used = {manifest.goldens.file};
    if (manifest.tokenizer) used.push_back(*manifest.tokenizer);
    bool not_run = false;
    std::set<std::string> plans;
    for (const auto& [name, written] : forms) {
        manifest.forms.add(name, fitted(written, manifest.io));
        const Form& form = written.form;
        used.push_back(form.file);
        used.insert(used.end(), form.external.begin(), form.external.end());
        not_run = not_run || form.parity.verdict == "NOT_RUN";
        plans.insert(form.plan);
    }
    check_used(manifest, used);
    const auto known = sorted(keys(forms));
    if (known.empty() || sorted(manifest.order) != known) {
        throw std::invalid_argument("order " + listed(manifest.order) + " is not an order of the forms " +
                                    listed(known));
    }
    if (manifest.unverified != not_run) {
        throw std::invalid_argument(std::string("got unverified ") + (manifest.unverified ? "True" : "False") +
                                    ", which is not what the forms' parity says");
    }
    check(manifest.goldens, manifest.io.outputs, plans);
}

}  // namespace

template <> struct Kind<File> : Record {
    static std::string words() { return "File"; }
    static File read(const Value& value, const std::string& where) {
        File file;
        read_record(value, where, words(), {into("bytes", file.bytes), into("sha256", file.sha256)},
                    [&file] { check(file); });
        return file;
    }
};

template <> struct Kind<Requires> : Record {
    static std::string words() { return "Requires"; }
    static Requires read(const Value& value, const std::string& where) {
        Requires result;
        read_record(value, where, words(),
                    {into("runtime", result.runtime), into("exact", result.exact), into("opset", result.opset),
                     into("sm", result.sm)},
                    [&result] { check(result); });
        return result;
    }
};

template <> struct Kind<Ran> : Record {
    static std::string words() { return "Ran"; }
    static Ran read(const Value& value, const std::string& where) {
        Ran ran;
        read_record(
            value, where, words(),
            {into("device", ran.device), into("provider", ran.provider), into("precision", ran.precision)});
        return ran;
    }
};

template <> struct Kind<Measured> : Record {
    static std::string words() { return "Measured"; }
    static Measured read(const Value& value, const std::string& where) {
        Measured result;
        read_record(value, where, words(),
                    {into("case", result.case_), into("output", result.output), into("rms_error", result.rms_error),
                     into("rms_bound", result.rms_bound), into("max_error", result.max_error),
                     into("max_bound", result.max_bound)},
                    [&result] { check(result); });
        return result;
    }
};

template <> struct Kind<Parity> : Record {
    static std::string words() { return "Parity"; }
    static Parity read(const Value& value, const std::string& where) {
        Parity parity;
        std::vector<Measured> results;
        std::optional<Ran> ran;
        const auto verdict = [](std::string_view name, std::string& target) {
            return one_of(name, target, {"PASS", "FAIL", "NOT_RUN"});
        };
        read_record(value, where, words(),
                    {verdict("verdict", parity.verdict), verdict("runtime", parity.runtime),
                     verdict("graph", parity.graph), into("reason", parity.reason), into("results", results),
                     into("ran", ran)},
                    [&] { check(parity, ran || !results.empty()); });
        return parity;
    }
};

template <> struct Kind<FusionItem> : Record {
    static std::string words() { return "FusionItem"; }
    static FusionItem read(const Value& value, const std::string& where) {
        FusionItem item;
        read_record(value, where, words(),
                    {into("attention", item.attention), into("fused", item.fused), into("kernel", item.kernel),
                     into("reason", item.reason)});
        return item;
    }
};

template <> struct Kind<Fusion> : Record {
    static std::string words() { return "Fusion"; }
    static Fusion read(const Value& value, const std::string& where) {
        Fusion fusion;
        read_record(value, where, words(),
                    {into("attentions", fusion.attentions), into("fused", fusion.fused),
                     into("proved_by", fusion.proved_by), into("items", fusion.items)},
                    [&fusion] { check(fusion); });
        return fusion;
    }
};

template <> struct Kind<Profile> : Record {
    static std::string words() { return "Profile"; }
    static Profile read(const Value& value, const std::string& where) {
        Profile profile;
        read_record(value, where, words(), {into("dims", profile.dims)});
        return profile;
    }
};

template <> struct Kind<WrittenForm> : Record {
    static std::string words() { return "Form"; }
    static WrittenForm read(const Value& value, const std::string& where) {
        WrittenForm written;
        Form& form = written.form;
        std::optional<Fusion> fusion;
        read_record(value, where, words(),
                    {into("file", form.file), into("external", form.external), into("plan", form.plan),
                     one_of("runtime", form.runtime, {"onnxruntime", "openvino", "tensorrt", "tensorrt_rtx"}),
                     into("provider", form.provider), into("dtypes", written.dtypes), into("profiles", form.profiles),
                     into("requires", form.requires_), one_of("proof", form.proof, {"device", "graph-only"}),
                     into("parity", form.parity), into("fusion", fusion)},
                    [&form] { check(form); });
        return written;
    }
};

template <> struct Kind<Bound> : Record {
    static std::string words() { return "Bound"; }
    static Bound read(const Value& value, const std::string& where) {
        Bound bound;
        read_record(value, where, words(),
                    {into("case", bound.case_), into("output", bound.output), into("plan", bound.plan),
                     into("rms_bound", bound.rms_bound), into("max_bound", bound.max_bound)},
                    [&bound] { check(bound); });
        return bound;
    }
};

template <> struct Kind<GoldenRecord> : Record {
    static std::string words() { return "Goldens"; }
    static GoldenRecord read(const Value& value, const std::string& where) {
        GoldenRecord goldens;
        read_record(value, where, words(), {into("file", goldens.file), into("bounds", goldens.bounds)});
        return goldens;
    }
};

template <> struct Kind<Provenance> : Record {
    static std::string words() { return "Provenance"; }
    static Provenance read(const Value& value, const std::string& where) {
        Provenance provenance;
        read_record(value, where, words(),
                    {into("source", provenance.source), into("inputs", provenance.inputs),
                     into("code_sha256", provenance.code_sha256), into("weights_sha256", provenance.weights_sha256),
                     into("opset", provenance.opset), into("commands", provenance.commands),
                     into("versions", provenance.versions)},
                    [&provenance] { check(provenance); });
        return provenance;
    }
};

Manifest decode_manifest(const Value& value, const std::string& where) {
    Manifest manifest;
    std::string format;
    std::int64_t version = 0;
    Ordered<WrittenForm> forms;
    Provenance provenance;
    read_record(value, where, "Manifest",
                {into("format", format), into("version", version), into("name", manifest.name),
                 into("unverified", manifest.unverified), into("io", manifest.io), into("order", manifest.order),
                 into("forms", forms), into("goldens", manifest.goldens), into("tokenizer", manifest.tokenizer),
                 into("provenance", provenance), into("files", manifest.files)},
                [&] { complete(manifest, forms); });
    return manifest;
}

}  // namespace attnport::reader
