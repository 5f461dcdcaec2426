// What the reader makes of many inputs: for each line of stdin, "manifest", "external" or "said" and bytes in
// hexadecimal digits, a line with the exit code (of external data: 0, or 1 for a refusal) and, in the same digits,
// either what was kept or the error's text. All but the exit code is written as Python's repr() would; "said" is what
// somebody else said, which is answered as a terminal may see it.
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>

#include <attnport/error.hpp>

#include "../hexadecimal.hpp"
#include "external.hpp"
#include "manifest.hpp"
#include "words.hpp"

namespace {

namespace reader = attnport::reader;

std::string text(const std::string& value) { return reader::quoted(value); }
std::string text(bool value) { return value ? "True" : "False"; }
std::string text(std::int64_t value) { return std::to_string(value); }
std::string text(std::uint64_t value) { return std::to_string(value); }
std::string text(double value) { return reader::shortest(value); }
std::string text(const std::vector<std::string>& values) { return reader::listed(values); }
std::string text(const std::vector<std::int64_t>& values) { return reader::listed(values); }

template <class T> std::string text(const std::optional<T>& value) { return value ? text(*value) : "None"; }

std::string text(const std::vector<attnport::Axis>& dims) {
    std::vector<std::string> found;
    found.reserve(dims.size());
    for (const auto& dim : dims) {
        found.push_back(std::visit([](const auto& axis) { return text(axis); }, dim));
    }
    return "[" + reader::joined(found) + "]";
}

template <class... Values> std::string row(const char* kind, const Values&... values) {
    return kind + (std::string() + ... + (" " + text(values))) + "\n";
}

std::string rows(const reader::Profile& profile) {
    std::string found = row("profile");
    for (const auto& dim : profile.dims) found += row("dim", dim.name, dim.min, dim.opt, dim.max);
    return found;
}

std::string rows(const char* kind, const std::vector<attnport::TensorSpec>& tensors) {
    std::string found;
    for (const auto& spec : tensors) {
        found += row(kind, spec.name, std::string(attnport::name(spec.dtype)), spec.dims, spec.high);
    }
    return found;
}

std::string rows(const attnport::IO& io) {
    std::string found = rows("input", io.inputs) + rows("output", io.outputs) + rows(reader::Profile{io.dims});
    for (const auto& mask : io.masks) {
        found += row("mask", mask.kinds, mask.input, mask.polarity, mask.alignment, mask.window, mask.carries,
                     mask.keys);
    }
    return found;
}

std::string rows(const std::string& name, const reader::Form& form) {
    std::string found = row("form", name, form.file, form.external, form.plan, form.runtime, form.provider, form.proof,
                            form.is_engine());
    for (const auto& [tensor, dtype] : form.dtypes) found += row("dtype", tensor, std::string(attnport::name(dtype)));
    for (const auto& profile : form.profiles) found += rows(profile);
    const reader::Requires& needs = form.requires_;
    found += row("requires", needs.runtime, needs.exact, needs.opset, needs.sm);
    return found + row("parity", form.parity.verdict, form.parity.runtime, form.parity.graph, form.parity.reason);
}

std::string rows(const reader::Manifest& manifest) {
    std::string found = row("manifest", manifest.name, manifest.unverified, manifest.order, manifest.tokenizer,
                            manifest.digest);
    found += rows(manifest.io);
    for (const auto& [name, form] : manifest.forms) found += rows(name, form);
    found += row("goldens", manifest.goldens.file);
    for (const auto& bound : manifest.goldens.bounds) {
        found += row("bound", bound.case_, bound.output, bound.plan, bound.rms_bound, bound.max_bound);
    }
    for (const auto& [name, file] : manifest.files) found += row("file", name, file.bytes, file.sha256);
    return found;
}

std::string of_manifest(const std::string& data) {
    try {
        return "0 " + hexadecimal::digits(rows(reader::from_bytes(data, "bundle.json")));
    } catch (const attnport::Error& err) {
        return std::to_string(err.exit_code()) + " " + hexadecimal::digits(err.what());
    }
}

template <class Read> std::string of_external(const Read& read) {
    try {
        return "0 " + hexadecimal::digits(read());
    } catch (const std::invalid_argument& err) {
        return "1 " + hexadecimal::digits(err.what());
    }
}

std::string of_external(std::string_view data) {
    const std::string references = of_external([data] {
        std::string found;
        for (const auto& one : reader::references(data)) {
            found += row("reference", one.location, one.offset, one.length);
        }
        return found;
    });
    return references + " " + of_external([data] { return row("opset", reader::opset(data)); });
}

}  // namespace

int main() {
    try {
        for (std::string line; std::getline(std::cin, line);) {
            const std::size_t space = line.find(' ');
            const std::string data = hexadecimal::bytes(line.substr(space + 1));
            const std::string kind = line.substr(0, space);
            if (kind == "manifest") std::cout << of_manifest(data) << '\n';
            if (kind == "external") std::cout << of_external(std::string_view(data)) << '\n';
            if (kind == "said") std::cout << "0 " << hexadecimal::digits(reader::escaped(data)) << '\n';
        }
        return 0;
    } catch (const std::exception& err) {
        std::cerr << "error: " << err.what() << '\n';
        return 1;
    }
}
