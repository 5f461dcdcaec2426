#include "contract.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>

#include "words.hpp"

namespace attnport::reader {

namespace {

using std::to_string;

const std::vector<std::string>& mask_kinds() {
    static const std::vector<std::string> kinds = {"none",      "padding", "causal", "window",  "prefix",
                                                   "documents", "global",  "bias",   "explicit"};
    return kinds;
}

bool is_integer(DType dtype) { return dtype == DType::Int32 || dtype == DType::Int64; }

bool is_identifier(std::string_view text) {
    const auto fits = [](char letter) {
        return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || letter == '_' ||
               (letter >= '0' && letter <= '9');
    };
    return !text.empty() && !(text[0] >= '0' && text[0] <= '9') && std::all_of(text.begin(), text.end(), fits);
}

template <class T> bool has(const std::vector<T>& values, const T& value) {
    return std::find(values.begin(), values.end(), value) != values.end();
}

// As a sentence shows a text that may not be there.
std::string quoted_or_none(const std::optional<std::string>& text) { return text ? quoted(*text) : "None"; }

// Throws unless the kinds are what lengths, ids or marks can say.
void check_said(const Mask& mask) {
    std::vector<std::string> sayable = {"documents"};
    if (mask.carries == "lengths") sayable = {"padding", "prefix"};
    if (mask.carries == "marks") sayable = {"global"};
    std::vector<std::string> beside = {"causal", "window", "bias"};
    if (mask.carries == "ids") beside.emplace_back("padding");
    std::size_t said = 0;
    bool others = false;
    for (const auto& kind : mask.kinds) {
        said += has(sayable, kind) ? 1U : 0U;
        others = others || !(has(sayable, kind) || has(beside, kind));
    }
    if (said != 1 || others) throw std::invalid_argument(mask.carries + " cannot say " + joined(mask.kinds));
    if (mask.polarity != "keep") {
        throw std::invalid_argument("got polarity " + mask.polarity + " for " + mask.carries + "; only a mask has one");
    }
}

template <class T> void check_twice(const std::vector<T>& named) {
    std::vector<std::string> names;
    names.reserve(named.size());
    for (const auto& one : named) names.push_back(one.name);
    if (std::set<std::string>(names.begin(), names.end()).size() != names.size()) {
        throw std::invalid_argument("a name is there twice among " + joined(names));
    }
}

using Names = std::set<std::string, std::less<>>;

void check_axes(const TensorSpec& spec, const Names& known) {
    for (const auto& axis : spec.dims) {
        const auto* name = std::get_if<std::string>(&axis);
        if (name != nullptr ? known.count(*name) != 0 : std::get<std::int64_t>(axis) >= 0) continue;
        const std::string got = name != nullptr ? quoted(*name) : to_string(std::get<std::int64_t>(axis));
        throw std::invalid_argument("tensor " + quoted(spec.name) + ": got dim " + got + "; known are " +
                                    joined({known.begin(), known.end()}));
    }
}

// A mask against the input that carries it.
void check_carrier(const Mask& mask, const TensorSpec& carrier) {
    const std::string carries = carrier.text() + " carries " + mask.carries;
    const std::size_t rank = mask.carries == "lengths" ? 1 : 2;
    if (mask.carries != "mask" && carrier.dims.size() != rank) {
        throw std::invalid_argument(carries + ", which have rank " + to_string(rank));
    }
    if ((mask.carries == "lengths" || mask.carries == "ids") && !is_integer(carrier.dtype)) {
        throw std::invalid_argument(carries + ", which are integers");
    }
    if (mask.polarity == "additive" && name(carrier.dtype).rfind("float", 0) != 0) {
        throw std::invalid_argument(carrier.text() + " carries an additive mask, which is of floats");
    }
}

}  // namespace

void check(const Dim& dim) {
    if (!is_identifier(dim.name) || !(1 <= dim.min && dim.min <= dim.opt && dim.opt <= dim.max)) {
        throw std::invalid_argument("dim " + quoted(dim.name) + ": expected a name and 1 <= min <= opt <= max");
    }
}

void check(const TensorSpec& spec) {
    if (spec.high && (!is_integer(spec.dtype) || *spec.high < 1)) {
        throw std::invalid_argument("tensor " + quoted(spec.name) + ": got high " + to_string(*spec.high) + " for " +
                                    std::string(name(spec.dtype)) + "; expected 1 up, of integers");
    }
}

void check(const Mask& mask) {
    std::vector<std::string> unknown;
    for (const auto& kind : mask.kinds) {
        if (!has(mask_kinds(), kind)) unknown.push_back(kind);
    }
    if (!unknown.empty() || mask.kinds.empty()) {
        throw std::invalid_argument("mask kind " + (unknown.empty() ? "missing" : joined(unknown)) +
                                    " is not one of " + joined(mask_kinds()));
    }
    const std::set<std::string> distinct(mask.kinds.begin(), mask.kinds.end());
    if (distinct.size() != mask.kinds.size() || (mask.has("none") && mask.kinds.size() > 1)) {
        throw std::invalid_argument("mask kinds " + joined(mask.kinds) + ": each is there once, and none is alone");
    }
    if (mask.window < 0 || (mask.window != 0 && !mask.has("window"))) {
        throw std::invalid_argument("got window " + to_string(mask.window) +
                                    "; expected 0, or more with the kind window");
    }
    if (mask.keys.has_value() != (mask.carries == "lengths")) {
        throw std::invalid_argument("a mask that carries " + mask.carries + " has keys " + quoted_or_none(mask.keys) +
                                    "; lengths alone count a dim");
    }
    if (mask.carries != "mask") check_said(mask);
}

void check(const IO& io) {
    check_twice(io.inputs);
    check_twice(io.outputs);
    check_twice(io.dims);
    Names known;
    for (const auto& dim : io.dims) known.insert(dim.name);
    for (const auto& spec : io.inputs) check_axes(spec, known);
    for (const auto& spec : io.outputs) check_axes(spec, known);
    for (const auto& spec : io.outputs) {
        if (spec.high) {
            throw std::invalid_argument("output " + quoted(spec.name) + ": got high " + to_string(*spec.high) +
                                        "; only inputs have one");
        }
    }
    std::map<std::string_view, const TensorSpec*> inputs;
    for (const auto& spec : io.inputs) inputs.emplace(spec.name, &spec);
    for (const auto& mask : io.masks) {
        const auto carrier = mask.input ? inputs.find(*mask.input) : inputs.end();
        if (carrier != inputs.end()) {
            check_carrier(mask, *carrier->second);
        } else if (mask.input || mask.carries != "mask") {
            throw std::invalid_argument("a mask is carried by " + quoted_or_none(mask.input) + ", which is no input");
        }
        if (mask.keys && known.count(*mask.keys) == 0) {
            throw std::invalid_argument(quoted_or_none(mask.input) + " counts " + quoted(*mask.keys) +
                                        ", which is no dim");
        }
    }
    if (io.inputs.empty() || io.outputs.empty()) {
        throw std::invalid_argument("a model has at least one input and one output");
    }
}

void check(const Profile& profile, const IO& io) {
    const auto& dims = profile.dims;
    std::vector<std::string> own;
    std::vector<std::string> wanted;
    own.reserve(dims.size());
    wanted.reserve(io.dims.size());
    for (const auto& dim : dims) own.push_back(dim.name);
    for (const auto& dim : io.dims) wanted.push_back(dim.name);
    if (own != wanted) {
        throw std::invalid_argument("a profile has dims " + listed(own) + "; the model's are others");
    }
    for (std::size_t index = 0; index < dims.size(); ++index) {
        const Dim& dim = dims[index];
        if (dim.min < io.dims[index].min || dim.max > io.dims[index].max) {
            throw std::invalid_argument("a profile has " + dim.name + " from " + to_string(dim.min) + " to " +
                                        to_string(dim.max) + ", beyond the model's range");
        }
    }
}

bool admits(const Profile& profile, const Ordered<std::int64_t>& sizes) {
    return std::all_of(profile.dims.begin(), profile.dims.end(), [&sizes](const Dim& dim) {
        const auto* size = sizes.find(dim.name);
        return size == nullptr || (dim.min <= *size && *size <= dim.max);
    });
}

}  // namespace attnport::reader
