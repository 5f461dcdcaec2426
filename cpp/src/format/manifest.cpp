#include "format/manifest.hpp"

#include <algorithm>
#include <functional>
#include <set>
#include <stdexcept>
#include <system_error>

#include <attnport/error.hpp>

#include "format/contract.hpp"
#include "format/files.hpp"
#include "format/json.hpp"
#include "format/signature.hpp"
#include "format/text.hpp"

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

Parity parity_of(const Located& at) {
    at.keys({"verdict", "runtime", "graph", "reason", "results", "ran"});
    Parity parity{verdict_of(at["verdict"]), verdict_of(at["runtime"]), verdict_of(at["graph"])};
    const auto fails = [](const std::string& verdict) { return verdict == "FAIL"; };
    if (fails(parity.verdict) || fails(parity.runtime) || fails(parity.graph)) {
        at.fail("parity failed; such a form is never in a bundle");
    }
    const bool passed = parity.runtime == "PASS" || parity.graph == "PASS";
    if (parity.verdict != (passed ? "PASS" : "NOT_RUN")) {
        at.fail("got verdict " + parity.verdict + " of runtime " + parity.runtime + " and graph " + parity.graph);
    }
    return parity;
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
    check_form(at, form);
    return form;
}

Bound golden_bound_of(const Located& at) {
    at.keys({"case", "output", "plan", "rms_bound", "max_bound"});
    return {at["case"].text(), at["output"].text(), at["plan"].text(), bound_of(at["rms_bound"]),
            bound_of(at["max_bound"])};
}

TokenizerFiles tokenizer_of(const Located& at) {
    at.keys({"file", "chars"});
    TokenizerFiles found{at["file"].text(), at["chars"].optional(&Located::text)};
    const std::string stem = found.file.substr(0, found.file.size() - (ends_with(found.file, ".json") ? 5 : 0));
    if (found.chars && *found.chars != stem + ".chars") at["chars"].expected(quoted(stem + ".chars"));
    return found;
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

constexpr std::size_t max_part = 255;
constexpr std::string_view python = "python/";
constexpr std::string_view reader_folder = "python/attnport_bundle/";
constexpr std::string_view no_bytecode = "python/attnport_bundle/__pycache__";

// Not std::tolower, which knows letters of the locale too.
std::string lower(std::string text) {
    for (char& letter : text) {
        if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    }
    return text;
}

bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }

bool is_plain(std::string_view part) {
    const bool letters = std::all_of(part.begin(), part.end(), [](char letter) {
        return letter >= 0x20 && letter < 0x7F && std::string_view("\\:*?\"<>|").find(letter) == std::string_view::npos;
    });
    return letters && !part.empty() && part != "." && part != ".." && part.back() != ' ' && part.back() != '.' &&
           part.size() <= max_part;
}

std::string problem_with(const std::string& name) {
    for (std::size_t at = 0; at <= name.size();) {
        const std::size_t end = std::min(name.find('/', at), name.size());
        const std::string_view part = std::string_view(name).substr(at, end - at);
        if (!is_plain(part)) return quoted(name) + " is not a plain path inside the folder";
        at = end + 1;
    }
    // The folder python/ holds the reader and nothing else.
    if (!starts_with(name, reader_folder) && starts_with(lower(name), python)) {
        return quoted(name) + " is not of the reader, and " + std::string(python) + " holds nothing else";
    }
    return "";
}

/// What is wrong with the names of a bundle's files: one leaves the folder, some file system takes it for another one,
/// there is code beside the Python reader, or that reader has no `__pycache__` file; "" = nothing.
std::string problem_with_names(const std::map<std::string, File>& files) {
    // Files that speak of all the others, and so are not among them.
    std::map<std::string, std::string> seen;
    for (const auto reserved : {manifest_name, signature_name}) seen.emplace(reserved, reserved);
    bool has_reader = false;
    for (const auto& [name, file] : files) {
        if (std::string problem = problem_with(name); !problem.empty()) return problem;
        const auto [first, is_new] = seen.emplace(lower(name), name);
        if (!is_new) return quoted(name) + " and " + quoted(first->second) + " may be one file";
        has_reader = has_reader || starts_with(name, reader_folder);
    }
    if (!has_reader || files.count(std::string(no_bytecode)) != 0) return "";
    return quoted(no_bytecode) + " is not among the files of the reader";
}

/// The rules between the parts.
void check_whole(const Located& at, const Manifest& manifest) {
    if (const std::string problem = problem_with_names(manifest.files); !problem.empty()) at["files"].fail(problem);
    std::vector<std::string> used = {manifest.goldens.file};
    if (manifest.tokenizer) {
        used.push_back(manifest.tokenizer->file);
        if (manifest.tokenizer->chars) used.push_back(*manifest.tokenizer->chars);
    }
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
    if (manifest.goldens.bounds.empty()) at["goldens"].fail("there is no golden case");
}

}  // namespace

std::string Prompts::chosen(const std::optional<std::string>& name) const {
    const std::string& wanted = name ? *name : default_name;
    const auto found = named.find(wanted);
    if (found != named.end()) return found->second;
    // As in sentence-transformers, every model takes these two.
    if (wanted.empty() || wanted == "query" || wanted == "document") return "";
    std::set<std::string> known{"query", "document"};
    for (const auto& [one, text] : named) known.insert(shown(one));
    throw FeedError("prompt: got " + quoted(cut(wanted)) + "; expected the name of one: " +
                    joined({known.begin(), known.end()}) +
                    ". Put a prompt of your own before the texts.");
}

Manifest from_bytes(std::string_view data, const std::string& where) {
    const Json value = parse(data, where);
    const Located at(value, where);
    // What is of another format or version may have any keys, so both are looked at first.
    const Json format = value.is_object() ? value.value("format", Json()) : Json();
    if (format != Json(format_name)) throw Error(where + " is not the manifest of a bundle.");
    const Json version = value.value("version", Json());
    if (!version.is_number_integer() || version != Json(format_version)) {
        throw Error(where + ": got version " + cut(version.dump(-1, ' ', true)) + "; this reader knows version " +
                    to_string(format_version) + ".");
    }
    at.keys({"format", "version", "name", "unverified", "io", "order", "forms", "goldens", "tokenizer", "prompts",
             "text_limit", "provenance", "files"});
    at["goldens"].keys({"file", "bounds"});
    Manifest manifest;
    manifest.name = at["name"].text();
    manifest.unverified = at["unverified"].boolean();
    manifest.io = io_of(at["io"]);
    manifest.order = at["order"].list(&Located::text);
    manifest.forms = at["forms"].map([&manifest](const Located& form) { return form_of(form, manifest.io); });
    manifest.goldens = {at["goldens"]["file"].text(), at["goldens"]["bounds"].list(golden_bound_of)};
    manifest.tokenizer = at["tokenizer"].optional(tokenizer_of);
    manifest.files = at["files"].map(bundled_file_of);
    manifest.prompts = prompts_of(at["prompts"]);
    manifest.text_limit = at["text_limit"].optional(limit_of);
    check_whole(at, manifest);
    manifest.digest = hex(sha256(data));
    return manifest;
}

std::string read_bytes(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / manifest_name;
    std::string data;
    try {
        data = RegularFile(path).read_up_to(max_manifest_bytes + 1);
    } catch (const std::runtime_error& failure) {
        std::error_code error;
        if (std::filesystem::is_symlink(path, error)) throw IntegrityError(path.string() + " is a link.");
        throw Error(folder.string() + " is no bundle: " + std::string(manifest_name) + " cannot be read: " +
                    failure.what() + ".");
    }
    if (data.size() <= max_manifest_bytes) return data;
    throw IntegrityError(path.string() + " has more than " + std::to_string(max_manifest_bytes) + " bytes.");
}

}  // namespace attnport::reader
