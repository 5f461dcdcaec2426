#include "format/contract.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "format/expression.hpp"
#include "format/json.hpp"
#include "format/text.hpp"

namespace attnport::reader {
namespace {

using std::to_string;
using Texts = std::vector<std::string>;
using Names = std::set<std::string>;

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

Dim read_dim(const Located& at) {
    at.keys({"name", "min", "opt", "max", "step"});
    Dim dim{at["name"].text(), at["min"].integer(), at["opt"].integer(), at["max"].integer(), at["step"].integer()};
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
    for (const auto dtype : {DType::Float32, DType::Float16, DType::Float64, DType::Int32, DType::Int64})
        if (name(dtype) == text) return dtype;
    return DType::Bool;
}

TensorSpec read_tensor(const Located& at) {
    at.keys({"name", "dtype", "dims", "high", "labels"});
    TensorSpec spec{at["name"].text(), dtype_of(at["dtype"]), at["dims"].list(axis_of),
                    at["high"].optional(&Located::integer), at["labels"].list(&Located::text)};
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

Names distinct(const Located& at, const Texts& names) {
    Names found(names.begin(), names.end());
    if (found.size() != names.size()) at.fail("a name is there twice among " + joined(names));
    return found;
}

/// `given`: the dims that inputs have as such. A size may be an expression of them, and an output's `unknown`.
void check_axes(const Located& at, const TensorSpec& spec, const Names& dims, const Names& given, bool unknown) {
    for (const auto& axis : spec.dims) {
        const auto* name = std::get_if<std::string>(&axis);
        if (unknown && is_unknown(axis)) continue;
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
    const auto count = static_cast<std::int64_t>(spec.labels.size());
    if (count == 0 || (!spec.dims.empty() && spec.dims.back() == Axis(count))) return;
    at.fail("tensor " + quoted(spec.name) + ": got " + to_string(count) + " labels; expected one for each place");
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

/// Checks a mask against the input that carries it.
void check_carrier(const Located& at, const Mask& mask, const std::vector<TensorSpec>& inputs) {
    if (!mask.input && mask.carries == "mask") return;
    const TensorSpec* const carrier = mask.input ? find_named(inputs, *mask.input) : nullptr;
    if (carrier == nullptr) at.fail("a mask is carried by " + quoted_or_none(mask.input) + ", which is no input");
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

std::vector<std::int64_t> token_ids(const Located& at) {
    std::vector<std::int64_t> found = at.list(&Located::integer);
    if (std::any_of(found.begin(), found.end(), [](std::int64_t token) { return token < 0; })) {
        at.fail("expected token ids of 0 or more");
    }
    return found;
}

/// The rules that would change which tokens follow.
Texts rules_of(const Located& at) {
    at.keys({"suppress", "suppress_first", "bad_words", "forced_first", "forced_last", "min_length", "min_tokens",
             "repetition_penalty", "no_repeat_ngram", "beams", "length_penalty", "early_stopping", "renormalize"});
    Texts found;
    for (const char* key : {"suppress", "suppress_first", "forced_first", "forced_last"}) {
        if (!token_ids(at[key]).empty()) found.emplace_back(key);
    }
    if (!at["bad_words"].list(token_ids).empty()) found.emplace_back("bad_words");
    for (const char* key : {"min_length", "min_tokens", "no_repeat_ngram"}) {
        if (at[key].integer() != 0) found.emplace_back(key);
    }
    if (at["repetition_penalty"].number() != 1) found.emplace_back("repetition_penalty");
    if (at["beams"].integer() != 1) found.emplace_back("beams");
    return found;
}

DecoderCache cache_of(const Located& at) {
    at.keys({"input", "output", "axis", "holds"});
    const auto holds = at["holds"].optional([](const Located& text) { return text.one_of({"all", "window"}); });
    DecoderCache cache{at["input"].text(), at["output"].text(), std::nullopt, holds == "window"};
    const auto axis = at["axis"].optional(&Located::integer);
    if (axis.has_value() != holds.has_value()) at.fail("a cache has an axis and holds tokens, and a state neither");
    if (axis && *axis < 0) at.fail("an axis below 0");
    if (axis) cache.axis = static_cast<std::size_t>(*axis);
    return cache;
}

DecoderWindow window_of(const Located& at) {
    at.keys({"mask", "places"});
    DecoderWindow window{at["mask"].optional(&Located::text), at["places"].integer()};
    if (window.places < 1) at.fail("got " + to_string(window.places) + " places; expected 1 or more");
    return window;
}

/// Checks that each input and output of a decoder is there, once, and has the dims of what it is for.
class DecoderCheck {
public:
    DecoderCheck(const Located& at, const IO& io, const Decoder& decoder) : at_(at), io_(io), decoder_(decoder) {}

    void check() {
        const TensorSpec& ids = input(decoder_.ids);
        require(ids.high && ids.dims.size() == 2 && dim_of(io_.dims, ids.dims[0]) != nullptr &&
                    (ids.dims[1] == Axis(std::int64_t{1}) || dim_of(io_.dims, ids.dims[1]) != nullptr),
                ids, "token ids [batch, seq] or [batch, 1], with a high");
        batch_ = ids.dims[0];
        seq_ = ids.dims[1];
        const Axis words(*ids.high);
        const TensorSpec& logits = one_of(io_.outputs, decoder_.logits, outputs_);
        require(logits.dims == Dims{batch_, words} || logits.dims == Dims{batch_, seq_, words}, logits,
                "scores of " + to_string(*ids.high) + " ids, [batch, ...] or [batch, seq, ...]");
        if (decoder_.caches.empty()) at_.fail("it has no cache");
        for (const DecoderCache& cache : decoder_.caches) check_cache(cache);
        check_window();
        const std::string& covers = decoder_.mask_covers;
        const Dim* const past = all_ != nullptr ? all_ : window_;
        if (decoder_.mask) {
            if ((covers == "new") != (past == nullptr)) at_.fail("a mask covers new tokens where all caches are states");
            check_mask(*decoder_.mask, covers == "all" ? sums(past) : covers == "past" ? Dims{past->name} : Dims{seq_});
        } else if (past != nullptr && past->min > 0) {
            at_.fail("its caches begin with " + to_string(past->min) + " places, and no mask hides them");
        }
        if (decoder_.positions) {
            const TensorSpec& positions = input(*decoder_.positions);
            require(positions.high && positions.dims == ids.dims, positions, "positions [batch, seq], with a high");
        }
        for (const TensorSpec& spec : io_.inputs) {
            const bool changes = std::any_of(spec.dims.begin(), spec.dims.end(), [&](const Axis& axis) {
                const auto has = [&](const Dim* dim) { return dim != nullptr && follows(io_, axis, dim->name); };
                return has(dim_of(io_.dims, seq_)) || has(all_) || has(window_);
            });
            require(inputs_.count(spec.name) != 0 || !changes, spec, "a use for what differs from step to step");
        }
    }

private:
    using Dims = std::vector<Axis>;

    const TensorSpec& input(const std::string& name) { return one_of(io_.inputs, name, inputs_); }

    const TensorSpec& one_of(const std::vector<TensorSpec>& specs, const std::string& name, Names& used) {
        const TensorSpec* const found = find_named(specs, name);
        if (found == nullptr) at_.fail(quoted(name) + " is no input or output of the model");
        if (!used.insert(name).second) at_.fail(quoted(name) + " is used twice");
        return *found;
    }

    void require(bool fits, const TensorSpec& spec, const std::string& expected) const {
        if (!fits) at_.fail(spec.text() + ": expected " + expected);
    }

    /// The length behind a pass, in either order.
    [[nodiscard]] Dims sums(const Dim* before) const {
        const auto* const name = std::get_if<std::string>(&seq_);
        const std::string seq = name == nullptr ? "1" : *name;
        return {before->name + "+" + seq, seq + "+" + before->name};
    }

    void check_cache(const DecoderCache& cache) {
        const TensorSpec& before = input(cache.input);
        const TensorSpec& behind = one_of(io_.outputs, cache.output, outputs_);
        require(std::count(before.dims.begin(), before.dims.end(), batch_) != 0, before, "a dim of the batch");
        if (!cache.axis) return require(behind.dims == before.dims, before, "the dims of " + quoted(cache.output));
        const Dim* const length =
            *cache.axis < before.dims.size() ? dim_of(io_.dims, before.dims[*cache.axis]) : nullptr;
        require(length != nullptr && before.dims[*cache.axis] != batch_ && before.dims[*cache.axis] != seq_, before,
                "a length of its own on axis " + to_string(*cache.axis));
        const Dims lengths = decoder_.returns_whole_caches ? sums(length) : Dims{seq_};
        require(std::any_of(lengths.begin(), lengths.end(),
                            [&](const Axis& one) {
                                Dims wanted = before.dims;
                                wanted[*cache.axis] = one;
                                return behind.dims == wanted;
                            }),
                behind, "the dims of " + quoted(cache.input) + ", and the length behind a step");
        const Dim*& other = cache.holds_window ? window_ : all_;
        require(other == nullptr || other == length, before, "the same length as other caches that hold as much");
        other = length;
    }

    void check_window() {
        if (decoder_.window.has_value() != (window_ != nullptr)) at_.fail("a window has caches, and nothing else has such");
        if (!decoder_.window) {
            if (decoder_.positions) at_.fail("positions are for models with a window alone");
            return;
        }
        if (!decoder_.returns_whole_caches || (decoder_.mask && decoder_.mask_covers != "all")) {
            at_.fail("with a window, caches and the mask are of all tokens");
        }
        const bool has_mask = decoder_.window->mask.has_value();
        if (has_mask != (all_ != nullptr) || has_mask == decoder_.positions.has_value()) {
            at_.fail("a window has a mask of its own, or all caches are of it and positions is an input");
        }
        if (all_ != nullptr && (all_ == window_ || all_->min != window_->min)) {
            at_.fail("caches of a window have a length of their own, and begin with as many places as others");
        }
        if (has_mask) check_mask(*decoder_.window->mask, sums(window_));
    }

    void check_mask(const std::string& name, const Dims& lengths) {
        const TensorSpec& spec = input(name);
        const auto is_here = [&](const Mask& mask) { return mask.input == name; };
        const bool keeps = std::all_of(io_.masks.begin(), io_.masks.end(), [&](const Mask& mask) {
            return !is_here(mask) || (mask.carries == "mask" && mask.polarity == "keep");
        });
        const bool fits = std::any_of(lengths.begin(), lengths.end(),
                                      [&](const Axis& length) { return spec.dims == Dims{batch_, length}; });
        require(keeps && fits && std::any_of(io_.masks.begin(), io_.masks.end(), is_here), spec,
                "a mask that says which tokens to keep, [batch, tokens]");
    }

    const Located& at_;
    const IO& io_;
    const Decoder& decoder_;
    Names inputs_;
    Names outputs_;
    Axis batch_;
    Axis seq_;
    const Dim* all_ = nullptr;     ///< the length of the caches that hold all tokens
    const Dim* window_ = nullptr;  ///< and of those that hold the last ones
};

Decoder decoder_of(const Located& at, const IO& io) {
    at.keys({"ids", "mask", "mask_covers", "positions", "logits", "caches", "output_holds", "window", "stop", "start",
             "rules"});
    const auto covers = [](const Located& text) { return text.one_of({"all", "past", "new"}); };
    const auto holds = [](const Located& text) { return text.one_of({"all", "new"}); };
    Decoder decoder;
    decoder.ids = at["ids"].text();
    decoder.mask = at["mask"].optional(&Located::text);
    decoder.mask_covers = at["mask_covers"].optional(covers).value_or("");
    decoder.positions = at["positions"].optional(&Located::text);
    decoder.logits = at["logits"].text();
    decoder.caches = at["caches"].list(cache_of);
    const auto output_holds = at["output_holds"].optional(holds);
    decoder.returns_whole_caches = output_holds != "new";
    decoder.window = at["window"].optional(window_of);
    decoder.stop = token_ids(at["stop"]);
    decoder.start = token_ids(at["start"]);
    decoder.rules = at["rules"].optional(rules_of).value_or(Texts{});
    const auto& caches = decoder.caches;
    const auto grows = [](const DecoderCache& one) { return one.axis.has_value(); };
    if (decoder.mask.has_value() == decoder.mask_covers.empty()) at.fail("a mask, and nothing else, covers tokens");
    if (output_holds.has_value() != std::any_of(caches.begin(), caches.end(), grows)) {
        at.fail("output_holds is null where every cache is a state, and only there");
    }
    DecoderCheck(at, io, decoder).check();
    return decoder;
}

}  // namespace

IO io_of(const Located& at) {
    at.keys({"inputs", "outputs", "dims", "masks", "decoder"});
    IO io{at["inputs"].list(read_tensor), at["outputs"].list(read_tensor), at["dims"].list(read_dim),
          at["masks"].list(mask_of), std::nullopt};
    static_cast<void>(distinct(at, names_of(io.inputs)));
    static_cast<void>(distinct(at, names_of(io.outputs)));
    const Names dims = distinct(at, names_of(io.dims));
    for (const Dim& dim : io.dims) {
        if (dim.opt < 1) at.fail("dim " + quoted(dim.name) + ": got the usual size 0; expected 1 or more");
    }
    const Names given = given_dims(io.inputs, dims);
    for (const auto& spec : io.inputs) check_axes(at, spec, dims, given, false);
    for (const auto& spec : io.outputs) {
        check_axes(at, spec, dims, given, true);
        if (spec.high) {
            at.fail("output " + quoted(spec.name) + ": got high " + to_string(*spec.high) + "; only inputs have one");
        }
    }
    for (const auto& mask : io.masks) {
        check_carrier(at, mask, io.inputs);
        if (mask.keys && dims.count(*mask.keys) == 0) {
            at.fail(quoted_or_none(mask.input) + " counts " + quoted(*mask.keys) + ", which is no dim");
        }
    }
    if (io.inputs.empty() || io.outputs.empty()) at.fail("a model has at least one input and one output");
    io.decoder = at["decoder"].optional([&io](const Located& decoder) { return decoder_of(decoder, io); });
    return io;
}

Profile profile_of(const Located& at, const IO& io) {
    at.keys({"dims"});
    Profile profile{at["dims"].list(read_dim)};
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

bool is_unknown(const Axis& axis) {
    const auto* const name = std::get_if<std::string>(&axis);
    return name != nullptr && *name == "?";
}

const Dim* dim_of(const std::vector<Dim>& dims, const Axis& axis) {
    const auto* const name = std::get_if<std::string>(&axis);
    return name == nullptr ? nullptr : find_named(dims, *name);
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
