#include "manifest_decode.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <stdexcept>
#include <tuple>

#include "contract.hpp"
#include "decode.hpp"
#include "words.hpp"

namespace attnport::reader {

namespace {

using std::to_string;

// What is checked while reading and not kept.
struct Ran {
    std::string device;
    std::string provider;
    std::string precision;
};

struct Measured {
    std::string case_;
    std::string output;
    double rms_error = 0;
    double rms_bound = 0;
    double max_error = 0;
    double max_bound = 0;
};

struct FusionItem {
    std::string attention;
    bool fused = false;
    std::optional<std::string> kernel;
    std::string reason;
};

struct Fusion {
    std::int64_t attentions = 0;
    std::int64_t fused = 0;
    std::optional<std::string> proved_by;
    std::vector<FusionItem> items;
};

struct Provenance {
    std::string source;
    std::vector<std::string> inputs;
    std::string code_sha256;
    std::string weights_sha256;
    std::int64_t opset = 0;
    std::vector<std::vector<std::string>> commands;
    Ordered<std::string> versions;
};

// A form as it is written: dtypes are any text until the contract is known.
struct WrittenForm {
    Form form;
    Ordered<std::string> dtypes;
};

bool all_of(std::string_view text, std::string_view letters) {
    return text.find_first_not_of(letters) == std::string_view::npos;
}

bool is_digest(std::string_view text) { return text.size() == 64 && all_of(text, "0123456789abcdef"); }

// One to four numbers of up to nine digits, with dots between them.
bool is_release(std::string_view text) {
    for (int number = 0; number < 4; ++number) {
        const std::size_t dot = text.find('.');
        const std::string_view digits = text.substr(0, dot);
        if (digits.empty() || digits.size() > 9 || !all_of(digits, "0123456789")) return false;
        if (dot == std::string_view::npos) return true;
        text.remove_prefix(dot + 1);
    }
    return false;
}

void check_opset(std::int64_t opset) {
    if (opset < 1) throw std::invalid_argument("got opset " + to_string(opset) + "; expected 1 or more");
}

void check(const File& file) {
    if (file.bytes < 0 || !is_digest(file.sha256)) {
        throw std::invalid_argument("a size below zero, or a digest that is not 64 lower-case hex digits");
    }
}

void check(const Requires& requires_) {
    if (!is_release(requires_.runtime)) {
        throw std::invalid_argument(quoted(requires_.runtime) + " is not a release such as 1.26");
    }
    if (requires_.opset) check_opset(*requires_.opset);
    const auto& sm = requires_.sm;
    const bool falls = std::adjacent_find(sm.begin(), sm.end(), std::greater_equal<>()) != sm.end();
    if (falls || (!sm.empty() && sm.front() < 1)) {
        throw std::invalid_argument("got compute capabilities " + listed(sm) +
                                    "; expected increasing numbers above 0");
    }
}

std::string named(const std::string& case_, const std::string& output) {
    return "case " + quoted(case_) + ", output " + quoted(output);
}

void check(const Measured& result) {
    const bool rms = 0 <= result.rms_error && result.rms_error <= result.rms_bound;
    const bool max = 0 <= result.max_error && result.max_error <= result.max_bound;
    if (!rms || !max) {
        throw std::invalid_argument(named(result.case_, result.output) + ": an error is below zero or over its bound");
    }
}

void check(const Bound& bound) {
    if (bound.rms_bound < 0 || bound.max_bound < 0) {
        throw std::invalid_argument(named(bound.case_, bound.output) + ": a bound is below zero");
    }
}

void check(const Parity& parity, bool has_results) {
    if (parity.verdict == "FAIL" || parity.runtime == "FAIL" || parity.graph == "FAIL") {
        throw std::invalid_argument("parity failed; such a form is never in a bundle");
    }
    const bool passed = parity.runtime == "PASS" || parity.graph == "PASS";
    if (parity.verdict != (passed ? "PASS" : "NOT_RUN")) {
        throw std::invalid_argument("got verdict " + parity.verdict + " of runtime " + parity.runtime + " and graph " +
                                    parity.graph);
    }
    if (!passed && has_results) throw std::invalid_argument("parity was not run, and yet has results");
}

void check(const Fusion& fusion) {
    std::int64_t fused = 0;
    for (const auto& item : fusion.items) fused += item.fused ? 1 : 0;
    if (fusion.attentions != static_cast<std::int64_t>(fusion.items.size()) || fusion.fused != fused) {
        throw std::invalid_argument("got " + to_string(fusion.fused) + " of " + to_string(fusion.attentions) +
                                    " fused, which is not what the items say");
    }
    if (fused != 0 && !fusion.proved_by) {
        throw std::invalid_argument("an attention is fused, and nothing proved it");
    }
}

void check(const Form& form) {
    const bool engine = form.is_engine();
    if (form.provider.has_value() != (form.runtime == "onnxruntime")) {
        throw std::invalid_argument("got provider " + (form.provider ? quoted(*form.provider) : "None") + " for " +
                                    form.runtime + "; onnxruntime alone has one");
    }
    if (engine == form.profiles.empty() || engine != form.requires_.exact) {
        throw std::invalid_argument(form.runtime + ": an engine, and nothing else, has profiles and an exact release");
    }
    if (engine == form.requires_.opset.has_value() || (engine && !form.external.empty()) ||
        (!engine && !form.requires_.sm.empty())) {
        throw std::invalid_argument(form.runtime +
                                    ": an ONNX file has an opset, an engine has none and no external data");
    }
    if ((form.proof == "device") != (form.parity.runtime == "PASS")) {
        throw std::invalid_argument("got proof " + form.proof + "; parity on the runtime is " + form.parity.runtime);
    }
}

void check(const Provenance& provenance) {
    if (!is_digest(provenance.code_sha256) || !is_digest(provenance.weights_sha256)) {
        throw std::invalid_argument("a digest of code or weights is not 64 lower-case hex digits");
    }
    check_opset(provenance.opset);
}

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

using Place = std::tuple<std::string, std::string, std::string>;  // plan, case, output

[[noreturn]] void refuse_one_sided(const Place& place) {
    throw std::invalid_argument("goldens: the bound of " + named(std::get<1>(place), std::get<2>(place)) + ", plan " +
                                std::get<0>(place) +
                                " is on one side only of the forms' outputs and plans and the list of bounds");
}

// One bound for every case, output and plan, and none for anything else.
void check(const GoldenRecord& goldens, const std::vector<TensorSpec>& outputs, const std::set<std::string>& plans) {
    std::set<Place> found;
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
                Place wanted(plan, case_, name);
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
void complete(Manifest& manifest, Ordered<WrittenForm> forms) {
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
