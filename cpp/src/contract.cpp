#include "contract.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "expression.hpp"
#include "json.hpp"
#include "rules.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

using std::to_string;
using Texts = std::vector<std::string>;

bool is_integer(DType dtype) { return dtype == DType::Int32 || dtype == DType::Int64; }

bool is_identifier(std::string_view text) {
    const auto fits = [](char letter) {
        return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || letter == '_' ||
               (letter >= '0' && letter <= '9');
    };
    return !text.empty() && !(text[0] >= '0' && text[0] <= '9') && std::all_of(text.begin(), text.end(), fits);
}

bool has(const Texts& values, std::string_view value) {
    return std::find(values.begin(), values.end(), value) != values.end();
}

std::string quoted_or_none(const std::optional<std::string>& text) { return text ? quoted(*text) : "none"; }

Dim dim_of(const Located& at) {
    const bool stepped = at.value().is_object() && at.value().count("step") != 0;  // bundles of version 3 do not have it
    if (stepped) {
        at.keys({"name", "min", "opt", "max", "step"});
    } else {
        at.keys({"name", "min", "opt", "max"});
    }
    Dim dim{at["name"].text(), at["min"].integer(), at["opt"].integer(), at["max"].integer(),
            stepped ? at["step"].integer() : 1};
    if (!is_identifier(dim.name) || !(0 <= dim.min && dim.min <= dim.opt && dim.opt <= dim.max)) {
        at.fail("dim " + quoted(dim.name) + ": expected a name and 0 <= min <= opt <= max");
    }
    if (dim.step < 1 || dim.min % dim.step != 0 || dim.opt % dim.step != 0 || dim.max % dim.step != 0) {
        at.fail("dim " + quoted(dim.name) + ": expected sizes that are multiples of a step of 1 or more; got step " +
                to_string(dim.step));
    }
    return dim;
}

Axis axis_of(const Located& at) {
    if (at.value().is_string()) return at.text();
    return at.integer();
}

DType dtype_of(const Located& at) {
    const std::string text = at.one_of({"float32", "float16", "float64", "int32", "int64", "bool"});
    for (const auto dtype : {DType::Float32, DType::Float16, DType::Float64, DType::Int32, DType::Int64}) {
        if (name(dtype) == text) return dtype;
    }
    return DType::Bool;
}

TensorSpec tensor_of(const Located& at) {
    at.keys({"name", "dtype", "dims", "high"});
    TensorSpec spec{at["name"].text(), dtype_of(at["dtype"]), at["dims"].list(axis_of),
                    at["high"].optional(&Located::integer)};
    if (spec.high && (!is_integer(spec.dtype) || *spec.high < 1)) {
        at.fail("tensor " + quoted(spec.name) + ": got high " + to_string(*spec.high) + " for " +
                std::string(name(spec.dtype)) + "; expected 1 or more, and an integer dtype");
    }
    return spec;
}

/// Refuses kinds that lengths, ids or marks cannot say.
void check_said(const Located& at, const Mask& mask) {
    Texts sayable = {"documents"};
    if (mask.carries == "lengths") sayable = {"padding", "prefix"};
    if (mask.carries == "marks") sayable = {"global"};
    Texts beside = {"causal", "window", "bias"};
    if (mask.carries == "ids") beside.emplace_back("padding");
    std::size_t said = 0;
    bool others = false;
    for (const auto& kind : mask.kinds) {
        said += has(sayable, kind) ? 1U : 0U;
        others = others || !(has(sayable, kind) || has(beside, kind));
    }
    if (said != 1 || others) at.fail(mask.carries + " cannot say " + joined(mask.kinds));
    if (mask.polarity != "keep") {
        at.fail("got polarity " + mask.polarity + " for " + mask.carries + "; only a mask has one");
    }
}

Mask mask_of(const Located& at) {
    static const Texts known = {"none",   "padding", "causal", "window",  "prefix",
                                "documents", "global",  "bias",   "explicit"};
    at.keys({"kinds", "input", "polarity", "alignment", "window", "carries", "keys"});
    Mask mask{at["kinds"].list(&Located::text),
              at["input"].optional(&Located::text),
              at["polarity"].one_of({"keep", "hide", "additive"}),
              at["alignment"].one_of({"upper_left", "lower_right"}),
              at["window"].integer(),
              at["carries"].one_of({"mask", "lengths", "ids", "marks"}),
              at["keys"].optional(&Located::text)};
    for (const auto& kind : mask.kinds) {
        if (!has(known, kind)) at.fail("mask kind " + kind + " is not one of " + joined(known));
    }
    const std::set<std::string> once(mask.kinds.begin(), mask.kinds.end());
    if (mask.kinds.empty() || once.size() != mask.kinds.size() || (mask.has("none") && mask.kinds.size() > 1)) {
        at.fail("got mask kinds " + joined(mask.kinds) + "; expected one or more, each is there once, none is alone");
    }
    if (mask.window < 0 || (mask.window != 0 && !mask.has("window"))) {
        at.fail("got window " + to_string(mask.window) + "; expected 0, or more with the kind window");
    }
    if (mask.keys.has_value() != (mask.carries == "lengths")) {
        at.fail("a mask that carries " + mask.carries + " has keys " + quoted_or_none(mask.keys) +
                "; lengths alone count a dim");
    }
    if (mask.carries != "mask") check_said(at, mask);
    return mask;
}

using Names = std::set<std::string>;

Names distinct(const Located& at, const Texts& names) {
    Names found(names.begin(), names.end());
    if (found.size() != names.size()) at.fail("a name is there twice among " + joined(names));
    return found;
}

/// `given`: the dims that inputs have as such. A size may be an expression of them.
void check_axes(const Located& at, const TensorSpec& spec, const Names& dims, const Names& given) {
    for (const auto& axis : spec.dims) {
        const auto* name = std::get_if<std::string>(&axis);
        if (name != nullptr ? dims.count(*name) != 0 : std::get<std::int64_t>(axis) >= 0) continue;
        std::string got = name != nullptr ? quoted(*name) : to_string(std::get<std::int64_t>(axis));
        if (name != nullptr) {
            const std::string problem = expression_problem(*name, given);
            if (problem.empty()) continue;
            got += " (" + problem + ")";
        }
        at.fail("tensor " + quoted(spec.name) + ": got dim " + got + "; expected a size, or one of " +
                joined({dims.begin(), dims.end()}));
    }
}

/// The dims that inputs have as such, and not only within an expression.
Names given_dims(const std::vector<TensorSpec>& inputs, const Names& dims) {
    Names given;
    for (const auto& spec : inputs) {
        for (const auto& axis : spec.dims) {
            const auto* name = std::get_if<std::string>(&axis);
            if (name != nullptr && dims.count(*name) != 0) given.insert(*name);
        }
    }
    return given;
}

using ByName = std::map<std::string_view, const TensorSpec*>;

/// Checks a mask against the input that carries it.
void check_carrier(const Located& at, const Mask& mask, const ByName& inputs) {
    if (!mask.input && mask.carries == "mask") return;
    const auto found = mask.input ? inputs.find(*mask.input) : inputs.end();
    if (found == inputs.end()) at.fail("a mask is carried by " + quoted_or_none(mask.input) + ", which is no input");
    const TensorSpec* const carrier = found->second;
    const std::size_t rank = mask.carries == "lengths" ? 1 : 2;
    if (mask.carries != "mask" && carrier->dims.size() != rank) {
        at.fail(carrier->text() + " carries " + mask.carries + ", which have rank " + to_string(rank));
    }
    if ((mask.carries == "lengths" || mask.carries == "ids") && !is_integer(carrier->dtype)) {
        at.fail(carrier->text() + " carries " + mask.carries + ", which are integers");
    }
    if (mask.polarity == "additive" && name(carrier->dtype).rfind("float", 0) != 0) {
        at.fail(carrier->text() + " carries an additive mask, which is of floats");
    }
}

Rules rules_of(const Located& at) {
    at.keys({"suppress", "suppress_first", "bad_words", "forced_first", "forced_last", "min_length", "min_tokens",
             "repetition_penalty", "no_repeat_ngram", "beams", "length_penalty", "early_stopping", "renormalize"});
    const auto tokens = [](const Located& list) { return list.list(&Located::integer); };
    Rules rules{tokens(at["suppress"]),
                tokens(at["suppress_first"]),
                at["bad_words"].list(tokens),
                tokens(at["forced_first"]),
                tokens(at["forced_last"]),
                at["min_length"].integer(),
                at["min_tokens"].integer(),
                at["repetition_penalty"].number(),
                at["no_repeat_ngram"].integer(),
                at["beams"].integer(),
                at["length_penalty"].number(),
                at["early_stopping"].boolean(),
                at["renormalize"].boolean()};
    if (const std::string problem = wrong_with(rules); !problem.empty()) at.fail(problem);
    return rules;
}

Window window_of(const Located& at) {
    at.keys({"dim", "places", "positions"});
    Window window{at["dim"].text(), at["places"].integer(), at["positions"].optional(&Located::text)};
    if (window.places < 1) {
        at.fail("window of " + quoted(window.dim) + ": got " + to_string(window.places) + " places; expected 1 or more");
    }
    return window;
}

/// Refuses a window of a dim or an input that is not there.
void check_window(const Located& at, const Window& window, const Names& dims, const ByName& inputs) {
    if (dims.count(window.dim) == 0) at.fail("a window is of " + quoted(window.dim) + ", which is no dim");
    if (!window.positions) return;
    const auto found = inputs.find(*window.positions);
    if (found == inputs.end() || !found->second->high) {
        at.fail("a window has its positions from " + quoted(*window.positions) + ", which is no input with a high");
    }
}

}  // namespace

IO io_of(const Located& at) {
    at.keys({"inputs", "outputs", "dims", "masks"}, {"stop", "start", "rules", "window"});  // which earlier bundles do not have
    const auto tokens = [&at](const char* key) {
        std::vector<std::int64_t> found;
        if (at.has(key)) found = at[key].list(&Located::integer);
        for (const std::int64_t token : found) {
            if (token < 0) at.fail(std::string(key) + ": got " + to_string(token) + "; expected token ids of 0 or more");
        }
        return found;
    };
    IO io{at["inputs"].list(tensor_of), at["outputs"].list(tensor_of), at["dims"].list(dim_of),
          at["masks"].list(mask_of), tokens("stop"), tokens("start"),
          at.has("rules") ? at["rules"].optional(rules_of).value_or(Rules{}) : Rules{},
          at.has("window") ? at["window"].optional(window_of) : std::nullopt};
    static_cast<void>(distinct(at, names_of(io.inputs)));
    static_cast<void>(distinct(at, names_of(io.outputs)));
    const Names dims = distinct(at, names_of(io.dims));
    for (const Dim& dim : io.dims) {
        if (dim.opt < 1) at.fail("dim " + quoted(dim.name) + ": got the usual size 0; expected 1 or more");
    }
    const Names given = given_dims(io.inputs, dims);
    for (const auto& spec : io.inputs) check_axes(at, spec, dims, given);
    for (const auto& spec : io.outputs) {
        check_axes(at, spec, dims, given);
        if (spec.high) {
            at.fail("output " + quoted(spec.name) + ": got high " + to_string(*spec.high) + "; only inputs have one");
        }
    }
    ByName inputs;
    for (const auto& spec : io.inputs) inputs.emplace(spec.name, &spec);
    for (const auto& mask : io.masks) {
        check_carrier(at, mask, inputs);
        if (mask.keys && dims.count(*mask.keys) == 0) {
            at.fail(quoted_or_none(mask.input) + " counts " + quoted(*mask.keys) + ", which is no dim");
        }
    }
    if (io.window) check_window(at, *io.window, dims, inputs);
    if (io.inputs.empty() || io.outputs.empty()) at.fail("a model has at least one input and one output");
    return io;
}

Profile profile_of(const Located& at, const IO& io) {
    at.keys({"dims"});
    Profile profile{at["dims"].list(dim_of)};
    const Texts dims = names_of(profile.dims);
    if (dims != names_of(io.dims)) at.fail("a profile has dims " + joined(dims) + "; the model's are others");
    for (std::size_t index = 0; index < dims.size(); ++index) {
        const Dim& dim = profile.dims[index];
        const Dim& limit = io.dims[index];
        if (dim.min < limit.min || dim.max > limit.max || dim.step != limit.step) {
            at.fail("a profile has " + dim.name + " from " + span(dim) + "; the model takes " + span(limit));
        }
    }
    return profile;
}

bool admits(const Profile& profile, const std::map<std::string, std::int64_t>& sizes) {
    return std::all_of(profile.dims.begin(), profile.dims.end(), [&sizes](const Dim& dim) {
        const auto size = sizes.find(dim.name);
        return size == sizes.end() || takes(dim, size->second);
    });
}

bool follows(const IO& io, const Axis& axis, const std::string& dim) {
    const auto* const text = std::get_if<std::string>(&axis);
    std::set<std::string> others;
    for (const Dim& each : io.dims) {
        if (each.name != dim) others.insert(each.name);
    }
    return text != nullptr && !expression_problem(*text, others).empty();
}

bool takes(const Dim& dim, std::int64_t size) { return dim.min <= size && size <= dim.max && size % dim.step == 0; }

std::int64_t at_least(const Dim& dim, std::int64_t size) {
    // Division rounds towards zero, and sizes are not negative.
    return std::max(dim.min, std::min((size + dim.step - 1) / dim.step * dim.step, dim.max));
}

std::string wider(const Dim& dim, std::int64_t size) {
    if (size % dim.step != 0) return "";
    const Dim wide{dim.name, std::min(dim.min, size), dim.opt, std::max(dim.max, size), dim.step};
    return " At export, --dim " + wide.name + "=" + to_string(wide.min) + ":" + to_string(wide.opt) + ":" +
           to_string(wide.max) + (dim.step > 1 ? ":" + to_string(dim.step) : "") +
           " allows it, if the module does.";
}

std::string span(const Dim& dim) {
    const std::string range = to_string(dim.min) + " to " + to_string(dim.max);
    return dim.step > 1 ? range + " in steps of " + to_string(dim.step) : range;
}

}  // namespace attnport::reader
