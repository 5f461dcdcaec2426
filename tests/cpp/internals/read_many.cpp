// What the reader makes of many inputs: for each line of stdin, "manifest", "said" or "size" and bytes in hexadecimal
// digits, a line with the exit code and, in the same digits, either what was kept, as JSON, or the error's text; "said" is what somebody else said, which is answered as a
// terminal may see it, and "size" is an expression with a=2, b=7 and huge=2**53 - 1, which is answered with its value.
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <variant>

#include <attnport/error.hpp>

#include "../hexadecimal.hpp"
#include "format/expression.hpp"
#include "format/json.hpp"
#include "format/manifest.hpp"
#include "format/text.hpp"

namespace {

namespace reader = attnport::reader;

using reader::Json;

template <class T> Json json(const T& value) { return value; }
template <class T> Json json(const std::optional<T>& value) { return value ? Json(*value) : Json(); }
Json json(std::string_view value) { return std::string(value); }
Json json(const std::vector<attnport::Axis>& dims) {
    Json found = Json::array();
    for (const auto& dim : dims) std::visit([&found](const auto& axis) { found.push_back(axis); }, dim);
    return found;
}

/// Rows, each with its kind first.
class Rows {
public:
    template <class... Values> void add(const char* kind, const Values&... values) {
        rows_.push_back(Json::array({Json(kind), json(values)...}));
    }
    void add(const reader::Profile& profile) {
        add("profile");
        for (const auto& dim : profile.dims) add("dim", dim.name, dim.min, dim.opt, dim.max, dim.step);
    }
    void add(const char* kind, const std::vector<attnport::TensorSpec>& tensors) {
        for (const auto& spec : tensors) add(kind, spec.name, attnport::name(spec.dtype), spec.dims, spec.high);
    }
    void add(const std::string& name, const reader::Form& form) {
        add("form", name, form.file, form.external, form.plan, form.runtime, form.provider, form.proof,
            form.is_engine());
        for (const auto& [tensor, dtype] : form.dtypes) add("dtype", tensor, attnport::name(dtype));
        for (const auto& profile : form.profiles) add(profile);
        add("requires", form.requires_.runtime, form.requires_.exact, form.requires_.opset, form.requires_.sm);
        add("parity", form.parity.verdict, form.parity.runtime, form.parity.graph);
    }
    [[nodiscard]] std::string digits() const { return hexadecimal::digits(rows_.dump()); }

private:
    Json rows_ = Json::array();
};

Rows rows(const reader::Manifest& manifest) {
    Rows found;
    found.add("manifest", manifest.name, manifest.unverified, manifest.order, manifest.digest);
    if (const auto& tokenizer = manifest.tokenizer) found.add("tokenizer", tokenizer->file, tokenizer->chars);
    found.add("input", manifest.io.inputs);
    found.add("output", manifest.io.outputs);
    found.add(reader::Profile{manifest.io.dims});
    for (const auto& mask : manifest.io.masks) {
        found.add("mask", mask.kinds, mask.input, mask.polarity, mask.alignment, mask.window, mask.carries, mask.keys);
    }
    if (const auto& decoder = manifest.io.decoder) {
        found.add("decoder", decoder->ids, decoder->mask, decoder->mask_covers, decoder->positions, decoder->logits,
                  decoder->returns_whole_caches, decoder->stop, decoder->start, decoder->rules);
        for (const auto& cache : decoder->caches) {
            found.add("cache", cache.input, cache.output, cache.axis, cache.holds_window);
        }
        if (const auto& window = decoder->window) found.add("window", window->mask, window->places);
    }
    found.add("text", manifest.prompts.named, manifest.prompts.default_name, manifest.text_limit);
    for (const auto& [name, form] : manifest.forms) found.add(name, form);
    found.add("goldens", manifest.goldens.file);
    for (const auto& bound : manifest.goldens.bounds) {
        found.add("bound", bound.case_, bound.output, bound.plan, bound.rms_bound, bound.max_bound);
    }
    for (const auto& [name, file] : manifest.files) found.add("file", name, file.bytes, file.sha256);
    return found;
}

std::string of_manifest(const std::string& data) {
    try {
        return "0 " + rows(reader::from_bytes(data, "bundle.json")).digits();
    } catch (const attnport::Error& err) {
        return std::to_string(err.exit_code()) + " " + hexadecimal::digits(err.what());
    }
}

std::string of_size(std::string_view text) {
    const auto size_of = [](std::string_view name) -> std::optional<std::int64_t> {
        if (name == "a") return 2;
        if (name == "b") return 7;
        if (name == "huge") return (std::int64_t{1} << 53) - 1;
        return std::nullopt;
    };
    const std::string problem = reader::expression_problem(text, {"a", "b", "huge"});
    const auto value = reader::value_of(text, size_of);
    const std::string said = value ? std::to_string(*value) : "none";
    return (problem.empty() ? "0 " : "1 ") + hexadecimal::digits(said);
}

}  // namespace

int main() {
    try {
        for (std::string line; std::getline(std::cin, line);) {
            const std::size_t space = line.find(' ');
            const std::string data = hexadecimal::bytes(line.substr(space + 1));
            const std::string kind = line.substr(0, space);
            if (kind == "manifest") std::cout << of_manifest(data) << '\n';
            if (kind == "size") std::cout << of_size(data) << '\n';
            if (kind == "said") std::cout << "0 " << hexadecimal::digits(reader::escaped(data)) << '\n';
        }
        return 0;
    } catch (const std::exception& err) {
        std::cerr << "error: " << err.what() << '\n';
        return 1;
    }
}
