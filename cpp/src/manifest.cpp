#include "manifest.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <system_error>
#include <tuple>

#include <attnport/error.hpp>

#include "contract.hpp"
#include "json.hpp"
#include "regular.hpp"
#include "sha256.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

using std::to_string;

constexpr std::string_view model_end = ".onnx";  // of every model file that is no engine

bool all_of(std::string_view text, std::string_view letters) {
    return text.find_first_not_of(letters) == std::string_view::npos;
}

bool ends_with(std::string_view text, std::string_view end) {
    return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::string digest_of(const Located& at) {
    std::string digest = at.text();
    if (digest.size() != 64 || !all_of(digest, "0123456789abcdef")) at.expected("a digest of 64 lower-case hex digits");
    return digest;
}

std::int64_t opset_of(const Located& at) {
    const std::int64_t opset = at.integer();
    if (opset < 1) at.fail("got opset " + to_string(opset) + "; expected 1 or more");
    return opset;
}

/// One to four numbers of up to nine digits, with dots between them.
std::string release_of(const Located& at) {
    std::string release = at.text();
    std::string_view rest = release;
    for (int number = 0; number < 4; ++number) {
        const std::size_t dot = rest.find('.');
        const std::string_view digits = rest.substr(0, dot);
        if (digits.empty() || digits.size() > 9 || !all_of(digits, "0123456789")) break;
        if (dot == std::string_view::npos) return release;
        rest.remove_prefix(dot + 1);
    }
    at.expected("a release such as 1.26");
}

double bound_of(const Located& at) {
    const double bound = at.number();
    if (bound < 0) at.fail("a bound is below zero");
    return bound;
}

File bundled_file_of(const Located& at) {
    at.keys({"bytes", "sha256"});
    File file{at["bytes"].integer(), digest_of(at["sha256"])};
    if (file.bytes < 0) at.fail("a size below zero");
    return file;
}

Requires requires_of(const Located& at) {
    at.keys({"runtime", "exact", "opset", "sm"});
    Requires found{release_of(at["runtime"]), at["exact"].boolean(), at["opset"].optional(opset_of),
                   at["sm"].list(&Located::integer)};
    const auto& sm = found.sm;
    const bool falls = std::adjacent_find(sm.begin(), sm.end(), std::greater_equal<>()) != sm.end();
    if (falls || (!sm.empty() && sm.front() < 1)) {
        at.fail("got compute capabilities " + listed(sm) + "; expected increasing numbers above 0");
    }
    return found;
}

std::string verdict_of(const Located& at) { return at.one_of({"PASS", "FAIL", "NOT_RUN"}); }

/// The measured numbers are checked and not kept.
void check_measured(const Located& at) {
    at.keys({"case", "output", "rms_error", "rms_bound", "max_error", "max_bound"});
    static_cast<void>(at["case"].text() + at["output"].text());
    const bool rms = at["rms_error"].number() >= 0 && at["rms_error"].number() <= at["rms_bound"].number();
    const bool max = at["max_error"].number() >= 0 && at["max_error"].number() <= at["max_bound"].number();
    if (!rms || !max) at.fail("an error is below zero or over its bound");
}

void check_ran(const Located& at) {
    at.keys({"device", "provider", "precision"});
    for (const char* key : {"device", "provider", "precision"}) static_cast<void>(at[key].text());
}

Parity parity_of(const Located& at) {
    at.keys({"verdict", "runtime", "graph", "reason", "results", "ran"});
    Parity parity{verdict_of(at["verdict"]), verdict_of(at["runtime"]), verdict_of(at["graph"]), at["reason"].text()};
    const auto fails = [](const std::string& verdict) { return verdict == "FAIL"; };
    if (fails(parity.verdict) || fails(parity.runtime) || fails(parity.graph)) {
        at.fail("parity failed; such a form is never in a bundle");
    }
    const bool passed = parity.runtime == "PASS" || parity.graph == "PASS";
    if (parity.verdict != (passed ? "PASS" : "NOT_RUN")) {
        at.fail("got verdict " + parity.verdict + " of runtime " + parity.runtime + " and graph " + parity.graph);
    }
    at["results"].each(check_measured);
    if (!at["ran"].value().is_null()) check_ran(at["ran"]);
    if (!passed && !(at["results"].value().empty() && at["ran"].value().is_null())) {
        at.fail("parity was not run, and yet has results");
    }
    return parity;
}

/// The evidence of fusion is checked and not kept.
void check_fusion(const Located& at) {
    at.keys({"attentions", "fused", "proved_by", "items"});
    const auto proved_by = at["proved_by"].optional(&Located::text);
    const auto is_fused = [](const Located& item) -> std::int64_t {
        item.keys({"attention", "fused", "kernel", "reason"});
        static_cast<void>(item["attention"].text() + item["reason"].text());
        static_cast<void>(item["kernel"].optional(&Located::text));
        return item["fused"].boolean() ? 1 : 0;
    };
    const std::vector<std::int64_t> items = at["items"].list(is_fused);
    const std::int64_t attentions = at["attentions"].integer();
    const std::int64_t fused = at["fused"].integer();
    if (attentions != static_cast<std::int64_t>(items.size()) || fused != std::count(items.begin(), items.end(), 1)) {
        at.fail("got " + to_string(fused) + " of " + to_string(attentions) +
                " fused, which is not what the items say");
    }
    if (fused != 0 && !proved_by) at.fail("an attention is fused, and nothing proved it");
}

std::optional<DType> float_dtype(std::string_view text) {
    for (const auto dtype : {DType::Float16, DType::BFloat16, DType::Float32, DType::Float64}) {
        if (name(dtype) == text) return dtype;
    }
    return std::nullopt;
}

/// The dtype of each tensor in the file: the contract's, or another floating-point one.
std::map<std::string, DType> dtypes_of(const Located& at, const IO& io) {
    const auto written = at.map(&Located::text);
    std::map<std::string, DType> found;
    for (const auto* specs : {&io.inputs, &io.outputs}) {
        for (const auto& spec : *specs) {
            const auto got = written.find(spec.name);
            if (got == written.end()) at.fail("key " + quoted(spec.name) + " is missing");
            const auto in_file = got->second == name(spec.dtype) ? spec.dtype : float_dtype(got->second);
            if (!in_file || (*in_file != spec.dtype && !float_dtype(name(spec.dtype)))) {
                at.fail(quoted(spec.name) + " is " + got->second + " in the file; the contract says " +
                        std::string(name(spec.dtype)));
            }
            found.emplace(spec.name, *in_file);
        }
    }
    if (written.size() != found.size()) at.fail("there are dtypes of what is no input or output");
    return found;
}

void check_form(const Located& at, const Form& form) {
    const bool engine = form.is_engine();
    if (form.provider.has_value() != (form.runtime == "onnxruntime")) {
        at.fail("got " + (form.provider ? "provider " + quoted(*form.provider) : "no provider") + " for " +
                form.runtime + "; onnxruntime alone has one");
    }
    if (engine == form.profiles.empty() || engine != form.requires_.exact) {
        at.fail(form.runtime + ": an engine, and nothing else, has profiles and an exact release");
    }
    if (engine == form.requires_.opset.has_value() || (engine && !form.external.empty()) ||
        (!engine && !form.requires_.sm.empty())) {
        at.fail(form.runtime + ": an ONNX file has an opset, an engine has none and no external data");
    }
    // Runtimes tell other formats by the name: what was looked into would not be what they read.
    if (!engine && !ends_with(form.file, model_end)) {
        at.fail("got file " + quoted(form.file) + " for " + form.runtime + "; expected a name that ends in " +
                std::string(model_end));
    }
    if ((form.proof == "device") != (form.parity.runtime == "PASS")) {
        at.fail("got proof " + form.proof + "; parity on the runtime is " + form.parity.runtime);
    }
}

Form form_of(const Located& at, const IO& io) {
    at.keys({"file", "external", "plan", "runtime", "provider", "dtypes", "profiles", "requires", "proof", "parity",
             "fusion"});
    Form form{at["file"].text(),
              at["external"].list(&Located::text),
              at["plan"].text(),
              at["runtime"].one_of({"onnxruntime", "openvino", "tensorrt", "tensorrt_rtx"}),
              at["provider"].optional(&Located::text),
              dtypes_of(at["dtypes"], io),
              at["profiles"].list([&io](const Located& one) { return profile_of(one, io); }),
              requires_of(at["requires"]),
              at["proof"].one_of({"device", "graph-only"}),
              parity_of(at["parity"])};
    if (!at["fusion"].value().is_null()) check_fusion(at["fusion"]);
    check_form(at, form);
    return form;
}

Bound golden_bound_of(const Located& at) {
    at.keys({"case", "output", "plan", "rms_bound", "max_bound"});
    return {at["case"].text(), at["output"].text(), at["plan"].text(), bound_of(at["rms_bound"]),
            bound_of(at["max_bound"])};
}

using GoldenOutput = std::tuple<std::string, std::string, std::string>;  // plan, case, output

/// Refuses all but one bound for every case, output and plan, and none for anything else.
void check_bounds(const Located& at, const Manifest& manifest) {
    const auto refuse = [&at](const GoldenOutput& place) {
        const auto& [plan, case_, output] = place;
        at.fail("the bound of case " + quoted(case_) + ", output " + quoted(output) + ", plan " + plan +
                " is on one side only of the forms' outputs and plans and the list of bounds");
    };
    std::set<GoldenOutput> found;
    std::set<std::string> cases;
    std::set<std::string> outputs;
    std::set<std::string> plans;
    for (const auto& bound : manifest.goldens.bounds) {
        found.emplace(bound.plan, bound.case_, bound.output);
        cases.insert(bound.case_);
    }
    for (const auto& output : manifest.io.outputs) outputs.insert(output.name);
    for (const auto& [name, form] : manifest.forms) plans.insert(form.plan);
    if (cases.empty()) at.fail("there is no golden case");
    if (found.size() != manifest.goldens.bounds.size()) at.fail("a bound is there twice");
    // Both sides in one order, side by side up to the first that differs: all that is wanted may be more than fits.
    auto next = found.begin();
    for (const auto& plan : plans) {
        for (const auto& case_ : cases) {
            for (const auto& output : outputs) {
                const GoldenOutput wanted(plan, case_, output);
                if (next == found.end() || *next != wanted) {
                    refuse(next == found.end() || wanted < *next ? wanted : *next);
                }
                ++next;
            }
        }
    }
    if (next != found.end()) refuse(*next);
}

Prompts prompts_of(const Located& at) {
    at.keys({"named", "default"});
    Prompts found{at["named"].map(&Located::any_text), at["default"].text()};
    if (!found.default_name.empty() && found.named.count(found.default_name) == 0) {
        at.fail("got default " + quoted(found.default_name) + ", which no prompt is named");
    }
    return found;
}

std::int64_t limit_of(const Located& at) {
    const std::int64_t found = at.integer();
    if (found < 1) at.expected("1 or more");
    return found;
}

/// Where the model is from is checked and not kept.
void check_provenance(const Located& at) {
    at.keys({"source", "inputs", "code_sha256", "weights_sha256", "opset", "commands", "versions"});
    static_cast<void>(at["source"].text() + digest_of(at["code_sha256"]) + digest_of(at["weights_sha256"]));
    static_cast<void>(opset_of(at["opset"]));
    static_cast<void>(at["inputs"].list(&Located::text));
    at["commands"].each([](const Located& command) { static_cast<void>(command.list(&Located::text)); });
    static_cast<void>(at["versions"].map(&Located::text));
}

/// The rules between the parts.
void check_whole(const Located& at, const Manifest& manifest) {
    if (const std::string problem = problem_with_names(manifest.files); !problem.empty()) at["files"].fail(problem);
    std::vector<std::string> used = {manifest.goldens.file};
    if (manifest.tokenizer) used.push_back(*manifest.tokenizer);
    std::vector<std::string> names;
    bool not_run = false;
    for (const auto& [name, form] : manifest.forms) {
        names.push_back(name);
        used.push_back(form.file);
        used.insert(used.end(), form.external.begin(), form.external.end());
        not_run = not_run || form.parity.verdict == "NOT_RUN";
    }
    for (const auto& name : used) {
        if (manifest.files.count(name) == 0) at.fail(quoted(name) + " is used, but not among the files");
    }
    auto order = manifest.order;
    std::sort(order.begin(), order.end());
    if (names.empty() || order != names) {
        at.fail("order " + joined(manifest.order) + " is not an order of the forms " + joined(names));
    }
    if (manifest.unverified != not_run) {
        at.fail(std::string("got unverified ") + (manifest.unverified ? "true" : "false") +
                ", which is not what the forms' parity says");
    }
    check_bounds(at["goldens"], manifest);
}

}  // namespace

std::string Prompts::chosen(const std::optional<std::string>& name) const {
    const std::string& wanted = name ? *name : default_name;
    const auto found = named.find(wanted);
    if (found != named.end()) return found->second;
    // As in sentence-transformers, every model takes these two.
    if (wanted.empty() || wanted == "query" || wanted == "document") return "";
    std::vector<std::string> known;
    for (const auto& [one, text] : named) known.push_back(quoted(one));
    for (const char* one : {"query", "document"}) {
        if (named.count(one) == 0) known.push_back(quoted(one));
    }
    throw FeedError("prompt: got " + quoted(cut(wanted)) + "; expected the name of one: " + joined(known) +
                    ". Put a prompt of your own before the texts.");
}

Manifest from_bytes(std::string_view data, const std::string& where) {
    const Json value = parse(data, where);
    const Located at(value, where);
    // What is of another format or version may have any keys, so both are looked at first.
    const Json format = value.is_object() ? value.value("format", Json()) : Json();
    if (format != Json(format_name)) throw Error(where + " is not the manifest of a bundle.");
    const Json version = value.value("version", Json());
    if (!version.is_number_integer() || version < Json(earliest_version) || version > Json(format_version)) {
        throw Error(where + ": got version " + cut(version.dump(-1, ' ', true)) + "; this reader knows versions " +
                    to_string(earliest_version) + " to " + to_string(format_version) + ".");
    }
    at.keys({"format", "version", "name", "unverified", "io", "order", "forms", "goldens", "tokenizer", "provenance",
             "files"},
            {"prompts", "text_limit"});
    at["goldens"].keys({"file", "bounds"});
    Manifest manifest;
    manifest.name = at["name"].text();
    manifest.unverified = at["unverified"].boolean();
    manifest.io = io_of(at["io"]);
    manifest.order = at["order"].list(&Located::text);
    manifest.forms = at["forms"].map([&manifest](const Located& form) { return form_of(form, manifest.io); });
    manifest.goldens = {at["goldens"]["file"].text(), at["goldens"]["bounds"].list(golden_bound_of)};
    manifest.tokenizer = at["tokenizer"].optional(&Located::text);
    check_provenance(at["provenance"]);
    manifest.files = at["files"].map(bundled_file_of);
    if (at.has("prompts")) manifest.prompts = prompts_of(at["prompts"]);
    if (at.has("text_limit")) manifest.text_limit = at["text_limit"].optional(limit_of);
    check_whole(at, manifest);
    manifest.digest = sha256_hex(data);
    return manifest;
}

std::string read_bytes(const std::filesystem::path& folder) {
    const std::string shown_folder = folder.string();
    const std::filesystem::path path = folder / manifest_name;
    const std::string shown_path = path.string();
    std::error_code error;
    const auto known = [&](bool found) {
        // What nobody may look at is neither there nor missing.
        if (!error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory ||
            error == std::errc::too_many_symbolic_link_levels) {
            return found;
        }
        throw Error(shown_path + " cannot be read: " + error.message() + ".");
    };
    if (!known(std::filesystem::is_directory(folder, error))) throw Error(shown_folder + " is not a folder.");
    if (known(std::filesystem::is_symlink(path, error))) throw IntegrityError(shown_path + " is a link.");
    if (!known(std::filesystem::is_regular_file(path, error))) {
        throw Error(shown_folder + " is no bundle: it has no " + std::string(manifest_name) + ".");
    }
    std::string data;
    try {
        data = RegularFile(path).read_up_to(max_manifest_bytes + 1);
    } catch (const std::exception& failure) {
        throw Error(shown_path + " cannot be read: " + failure.what() + ".");
    }
    if (data.size() > max_manifest_bytes) {
        throw IntegrityError(shown_path + " has more than " + std::to_string(max_manifest_bytes) + " bytes.");
    }
    return data;
}

}  // namespace attnport::reader
