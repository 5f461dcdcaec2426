#include "roles.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <attnport/error.hpp>

#include "expression.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

using Dims = std::vector<Axis>;

[[noreturn]] void refuse(const std::string& why) {
    throw FeedError("the model does not generate: " + why + ". Of hf:, export it with --with-past.");
}

bool is_float(DType dtype) {
    return dtype == DType::Float32 || dtype == DType::Float16 || dtype == DType::Float64 || dtype == DType::BFloat16;
}

const Dim* dim_of(const IO& io, const Axis& axis) {
    const auto* const name = std::get_if<std::string>(&axis);
    if (name == nullptr) return nullptr;
    const auto found = std::find_if(io.dims.begin(), io.dims.end(), [&](const Dim& dim) { return dim.name == *name; });
    return found == io.dims.end() ? nullptr : &*found;
}

/// The lengths behind a pass, in either order.
std::vector<Axis> sums(const std::string& past, const std::string& seq) { return {past + "+" + seq, seq + "+" + past}; }

/// The output of a cache among those that are left, by its dims; it is taken out of them.
std::optional<std::string> follower(std::vector<const TensorSpec*>& left, const TensorSpec& cache, std::size_t axis,
                                    const std::vector<Axis>& lengths) {
    for (auto output = left.begin(); output != left.end(); ++output) {
        for (const Axis& length : lengths) {
            Dims wanted = cache.dims;
            wanted[axis] = length;
            if ((*output)->dims != wanted) continue;
            std::string name = (*output)->name;
            left.erase(output);
            return name;
        }
    }
    return std::nullopt;
}

/// Whether an input has a size that differs from step to step.
bool grows(const IO& io, const TensorSpec& spec, const std::string& past, const std::string& seq) {
    std::set<std::string> others;
    for (const Dim& dim : io.dims) {
        if (dim.name != past && dim.name != seq) others.insert(dim.name);
    }
    return std::any_of(spec.dims.begin(), spec.dims.end(), [&](const Axis& axis) {
        const auto* const text = std::get_if<std::string>(&axis);
        return text != nullptr && !expression_problem(*text, others).empty();
    });
}

/// Each cache of a length with its output: they are in the same order, and differ in the length alone. None where a
/// cache has none.
std::optional<std::vector<Cached>> paired(const IO& io, const std::vector<const TensorSpec*>& floats,
                                          const std::string& past, const std::string& seq, bool grown) {
    const Axis length(past);
    const std::vector<Axis> lengths = grown ? sums(past, seq) : std::vector<Axis>{seq};
    std::vector<const TensorSpec*> left;
    for (const TensorSpec& output : io.outputs) left.push_back(&output);
    std::vector<Cached> found;
    for (const TensorSpec* const spec : floats) {
        const auto at = std::find(spec->dims.begin(), spec->dims.end(), length);
        if (at == spec->dims.end()) continue;
        const auto axis = static_cast<std::size_t>(at - spec->dims.begin());
        auto output = follower(left, *spec, axis, lengths);
        if (!output) return std::nullopt;
        found.push_back({spec, *std::move(output), axis});
    }
    return found;
}

/// Finds the caches, and gives the dim of their length; null where there are none.
const Dim* find_caches(const IO& io, const std::vector<const TensorSpec*>& floats, const std::string& seq,
                       Roles& roles) {
    std::vector<const Dim*> lengths;
    for (const Dim& dim : io.dims) {
        const Axis axis(dim.name);
        const bool own = axis != roles.ids->dims[0] && axis != roles.ids->dims[1];
        const bool had = std::any_of(floats.begin(), floats.end(), [&](const TensorSpec* spec) {
            return std::find(spec->dims.begin(), spec->dims.end(), axis) != spec->dims.end();
        });
        if (own && had) lengths.push_back(&dim);
    }
    if (lengths.empty()) return nullptr;
    for (const bool grown : {true, false}) {
        std::vector<const Dim*> found;
        for (const Dim* const past : lengths) {
            auto pairs = paired(io, floats, past->name, seq, grown);
            if (!pairs) continue;
            roles.caches = *std::move(pairs);
            roles.grown = grown;
            found.push_back(past);
        }
        if (found.size() > 1) {
            std::vector<std::string> names(found.size());
            std::transform(found.begin(), found.end(), names.begin(), [](const Dim* past) { return past->name; });
            refuse("each of " + joined(names) + " may be the length of its cache");
        }
        if (!found.empty()) return found[0];
    }
    const std::string& past = lengths[0]->name;
    refuse("not every cache has an output with " + past + "+" + seq + " or " + seq + " in place of " + past);
}

/// How many new tokens a pass has, as it stands in the sizes of masks and outputs.
std::string new_tokens(const Roles& roles) {
    const auto* const seq = std::get_if<std::string>(&roles.ids->dims[1]);
    return seq == nullptr ? "1" : *seq;
}

/// The inputs whose roles are found.
std::set<std::string> known(const Roles& roles) {
    std::set<std::string> names{roles.ids->name};
    for (const Cached& cache : roles.caches) names.insert(cache.spec->name);
    for (const TensorSpec* const spec : {roles.mask, roles.positions, roles.kept ? roles.kept->mask : nullptr}) {
        if (spec != nullptr) names.insert(spec->name);
    }
    return names;
}

/// Finds the states: each has an output of the same dims, in the same order.
void find_states(const IO& io, Roles& roles) {
    const std::set<std::string> taken = known(roles);
    std::set<std::string> made;
    if (roles.logits != nullptr) made.insert(roles.logits->name);
    for (const Cached& cache : roles.caches) made.insert(cache.output);
    for (const TensorSpec& spec : io.inputs) {
        if (taken.count(spec.name) != 0 || roles.batch_axis(spec) == spec.dims.size()) continue;
        const auto output = std::find_if(io.outputs.begin(), io.outputs.end(), [&](const TensorSpec& one) {
            return made.count(one.name) == 0 && one.dims == spec.dims;
        });
        if (output == io.outputs.end()) continue;
        roles.caches.push_back({&spec, output->name, std::nullopt});
        made.insert(output->name);
    }
}

/// The mask of a cache's length, if there is one, and whether it is of the new tokens too.
std::pair<const TensorSpec*, bool> mask_of(const IO& io, const std::set<std::string>& names, const std::string& past,
                                           const Roles& roles) {
    const std::string seq = new_tokens(roles);
    std::vector<const TensorSpec*> found;
    for (const TensorSpec& spec : io.inputs) {
        const bool fits = spec.dims == roles.ids->dims || grows(io, spec, past, seq);
        if (names.count(spec.name) != 0 && fits) found.push_back(&spec);
    }
    if (found.empty()) return {nullptr, true};
    const Axis& batch = roles.ids->dims[0];
    const auto wholes = past.empty() ? std::vector<Axis>{roles.ids->dims[1]} : sums(past, seq);
    const Dims& dims = found[0]->dims;
    const bool whole =
        std::any_of(wholes.begin(), wholes.end(), [&](const Axis& sum) { return dims == Dims{batch, sum}; });
    const bool plain = std::all_of(io.masks.begin(), io.masks.end(), [&](const Mask& mask) {
        return mask.input != found[0]->name || (mask.carries == "mask" && mask.polarity == "keep");
    });
    if (found.size() > 1 || !plain || !(whole || dims == Dims{batch, Axis(past)})) {
        refuse("there is no rule for its mask " + found[0]->text());
    }
    return {found[0], whole};
}

/// Finds the caches that hold the last places alone, and their mask.
void find_kept(const IO& io, const std::vector<const TensorSpec*>& floats, const std::set<std::string>& masks,
               Roles& roles) {
    const Window& window = *io.window;
    const std::string seq = new_tokens(roles);
    const auto [mask, whole] = mask_of(io, masks, window.dim, roles);
    auto pairs = paired(io, floats, window.dim, seq, true);
    if (mask == nullptr || !whole || !pairs || pairs->empty()) {
        refuse("its window of " + window.dim + " needs a mask, and for every cache an output, of " + window.dim + "+" +
               seq);
    }
    const Dim* const dim = dim_of(io, Axis(window.dim));
    if (!roles.grows || !roles.grown || dim->min != roles.start) refuse("there is no rule for its window of " + window.dim);
    roles.kept = Kept{mask, window.dim, window.places, dim->max};
    if (roles.positions == nullptr) roles.caches.insert(roles.caches.end(), pairs->begin(), pairs->end());
    if (dim->max < window.places) {  // so few that none may go
        roles.longest_past = std::min(roles.longest_past, dim->max);
    } else if (roles.positions != nullptr) {
        roles.longest_past = roles.start + *roles.positions->high - 1;
    }
}

void find_ids(const IO& io, const std::set<std::string>& masks, Roles& roles) {
    std::vector<const TensorSpec*> found;
    for (const TensorSpec& spec : io.inputs) {
        if (spec.high && masks.count(spec.name) == 0 && spec.dims.size() == 2) found.push_back(&spec);
    }
    const bool one = found.size() == 1;
    const bool single = one && found[0]->dims[1] == Axis(std::int64_t{1});
    if (!one || dim_of(io, found[0]->dims[0]) == nullptr || !(single || dim_of(io, found[0]->dims[1]) != nullptr)) {
        refuse("it has " + std::to_string(found.size()) + " inputs of token ids [batch, seq]; expected one");
    }
    roles.ids = found[0];
}

void find_logits(const IO& io, Roles& roles) {
    const Axis words(*roles.ids->high);
    for (const TensorSpec& spec : io.outputs) {
        const std::size_t rank = spec.dims.size();
        const bool fits = rank >= 2 && spec.dims.front() == roles.ids->dims[0] && spec.dims.back() == words &&
                          (rank == 2 || (rank == 3 && spec.dims[1] == roles.ids->dims[1]));
        if (!fits) continue;
        roles.logits = &spec;
        roles.each = rank == 3;
        return;
    }
}

void find_context(const IO& io, const std::string& past, const std::string& seq, Roles& roles) {
    const std::set<std::string> taken = known(roles);
    std::vector<std::string> others;
    for (const TensorSpec& spec : io.inputs) {
        if (taken.count(spec.name) != 0) continue;
        roles.context.push_back(&spec);
        if (grows(io, spec, past, seq)) others.push_back(shown(spec.name));
    }
    if (!others.empty()) refuse("it also takes " + joined(others));
}

}  // namespace

std::size_t Roles::batch_axis(const TensorSpec& spec) const {
    return static_cast<std::size_t>(std::find(spec.dims.begin(), spec.dims.end(), ids->dims[0]) - spec.dims.begin());
}

bool Roles::holds_last(const Cached& cache) const {
    return kept && cache.axis && cache.spec->dims[*cache.axis] == Axis(kept->dim);
}

Roles roles_of(const IO& io) {
    std::set<std::string> masks;
    for (const Mask& mask : io.masks) {
        if (mask.input) masks.insert(*mask.input);
    }
    std::vector<const TensorSpec*> floats;
    for (const TensorSpec& spec : io.inputs) {
        if (is_float(spec.dtype)) floats.push_back(&spec);
    }
    if (floats.empty()) refuse("it has no cache: no input is of floats");
    Roles roles;
    std::set<std::string> near;
    for (const TensorSpec& spec : io.inputs) {
        if (!io.window) break;
        if (io.window->positions == spec.name) roles.positions = &spec;
        if (grows(io, spec, io.window->dim, io.window->dim)) near.insert(spec.name);
    }
    std::set<std::string> others = masks;
    if (roles.positions != nullptr) others.insert(roles.positions->name);
    find_ids(io, others, roles);
    const std::string seq = new_tokens(roles);
    // A mask of all tokens, which counts their positions, has the length of other caches.
    const bool apart = io.window && roles.positions == nullptr;
    const std::vector<const TensorSpec*> all = floats;
    std::set<std::string> far_masks = masks;
    std::set<std::string> near_masks;
    for (const std::string& name : near) {
        if (masks.count(name) != 0) near_masks.insert(name);
        if (!apart) continue;
        far_masks.erase(name);
        floats.erase(std::remove_if(floats.begin(), floats.end(), [&](const auto* spec) { return spec->name == name; }),
                     floats.end());
    }
    const Dim* const past = find_caches(io, floats, seq, roles);
    const std::string name = past == nullptr ? "" : past->name;
    roles.grows = past != nullptr;
    find_logits(io, roles);
    std::tie(roles.mask, roles.whole) = mask_of(io, far_masks, name, roles);
    roles.start = past == nullptr ? 0 : past->min;
    roles.longest_past = past == nullptr ? std::numeric_limits<std::int32_t>::max() : past->max;
    if (roles.start != 0 && roles.mask == nullptr) {
        refuse("its cache cannot be empty: " + name + " is from " + std::to_string(past->min) +
               ", and no mask hides a place");
    }
    if (io.window) find_kept(io, all, near_masks, roles);
    find_states(io, roles);
    if (roles.caches.empty()) {
        refuse("it has no cache: no input of floats with a length of its own, or with an output of its size");
    }
    if (roles.logits == nullptr) refuse("no output scores the " + std::to_string(*roles.ids->high) + " ids");
    find_context(io, name, seq, roles);
    const Dim* const tokens = dim_of(io, roles.ids->dims[1]);
    roles.longest_seq = tokens == nullptr ? 1 : tokens->max;
    return roles;
}

}  // namespace attnport::reader
