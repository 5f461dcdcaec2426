#include "manifest_rules.hpp"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string_view>

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

}  // namespace

std::string in_case(const std::string& case_, const std::string& output) {
    return "case " + quoted(case_) + ", output " + quoted(output);
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

void check(const Measured& result) {
    const bool rms = 0 <= result.rms_error && result.rms_error <= result.rms_bound;
    const bool max = 0 <= result.max_error && result.max_error <= result.max_bound;
    if (!rms || !max) {
        throw std::invalid_argument(in_case(result.case_, result.output) + ": an error is below zero or over its bound");
    }
}

void check(const Bound& bound) {
    if (bound.rms_bound < 0 || bound.max_bound < 0) {
        throw std::invalid_argument(in_case(bound.case_, bound.output) + ": a bound is below zero");
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
    // Runtimes tell other formats by the name: what was looked into would not be what they read.
    if (!engine && !ends_with(form.file, model_end)) {
        throw std::invalid_argument("got file " + quoted(form.file) + " for " + form.runtime +
                                    "; expected a name that ends in " + std::string(model_end));
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

}  // namespace attnport::reader
