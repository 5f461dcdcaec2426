#include "roles.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
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

/// Each cache with its output: they are in the same order, and differ in the length alone. False where one has none.
bool pair_up(const IO& io, const std::vector<const TensorSpec*>& floats, const std::string& past,
             const std::string& seq, bool grown, Roles& roles) {
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
        if (!output) return false;
        found.push_back({spec, *std::move(output), axis});
    }
    roles.caches = std::move(found);
    roles.grown = grown;
    return true;
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
        std::copy_if(lengths.begin(), lengths.end(), std::back_inserter(found),
                     [&](const Dim* past) { return pair_up(io, floats, past->name, seq, grown, roles); });
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

/// Finds the states: each has an output of the same dims, in the same order.
void find_states(const IO& io, Roles& roles) {
    std::set<std::string> taken{roles.ids->name};
    std::set<std::string> made;
    if (roles.logits != nullptr) made.insert(roles.logits->name);
    if (roles.mask != nullptr) taken.insert(roles.mask->name);
    for (const Cached& cache : roles.caches) {
        taken.insert(cache.spec->name);
        made.insert(cache.output);
    }
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

void find_mask(const IO& io, const std::set<std::string>& names, const std::string& past, const std::string& seq,
               Roles& roles) {
    std::vector<const TensorSpec*> found;
    for (const TensorSpec& spec : io.inputs) {
        const bool fits = spec.dims == roles.ids->dims || grows(io, spec, past, seq);
        if (names.count(spec.name) != 0 && fits) found.push_back(&spec);
    }
    if (found.empty()) return;
    const Axis& batch = roles.ids->dims[0];
    const auto wholes = roles.grows ? sums(past, seq) : std::vector<Axis>{roles.ids->dims[1]};
    const Dims& dims = found[0]->dims;
    roles.whole = std::any_of(wholes.begin(), wholes.end(), [&](const Axis& sum) { return dims == Dims{batch, sum}; });
    const bool plain = std::all_of(io.masks.begin(), io.masks.end(), [&](const Mask& mask) {
        return mask.input != found[0]->name || (mask.carries == "mask" && mask.polarity == "keep");
    });
    if (found.size() > 1 || !plain || !(roles.whole || dims == Dims{batch, Axis(past)})) {
        refuse("there is no rule for its mask " + found[0]->text());
    }
    roles.mask = found[0];
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
    std::set<std::string> taken{roles.ids->name};
    for (const Cached& cache : roles.caches) taken.insert(cache.spec->name);
    if (roles.mask != nullptr) taken.insert(roles.mask->name);
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
    find_ids(io, masks, roles);
    const Dim* const seq = dim_of(io, roles.ids->dims[1]);
    const std::string length = seq == nullptr ? "1" : seq->name;
    const Dim* const past = find_caches(io, floats, length, roles);
    const std::string name = past == nullptr ? "" : past->name;
    roles.grows = past != nullptr;
    find_logits(io, roles);
    find_mask(io, masks, name, length, roles);
    find_states(io, roles);
    if (roles.caches.empty()) {
        refuse("it has no cache: no input of floats with a length of its own, or with an output of its size");
    }
    if (roles.logits == nullptr) refuse("no output scores the " + std::to_string(*roles.ids->high) + " ids");
    roles.start = past == nullptr ? 0 : past->min;
    if (roles.start != 0 && roles.mask == nullptr) {
        refuse("its cache cannot be empty: " + name + " is from " + std::to_string(past->min) +
               ", and no mask hides a place");
    }
    find_context(io, name, length, roles);
    roles.longest_seq = seq == nullptr ? 1 : seq->max;
    roles.longest_past = past == nullptr ? std::numeric_limits<std::int32_t>::max() : past->max;
    return roles;
}

}  // namespace attnport::reader
