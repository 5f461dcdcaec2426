#include "roles.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include <attnport/error.hpp>

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

/// Each cache with its output: they are in the same order, and differ in the length alone.
void pair_up(const IO& io, const std::vector<const TensorSpec*>& inputs, const std::string& past,
             const std::string& seq, Roles& roles) {
    const Axis length(past);
    for (const bool grown : {true, false}) {
        std::vector<const TensorSpec*> left;
        for (const TensorSpec& output : io.outputs) left.push_back(&output);
        std::vector<Cached> found;
        for (const TensorSpec* const spec : inputs) {
            const auto at = std::find(spec->dims.begin(), spec->dims.end(), length);
            const auto axis = static_cast<std::size_t>(at - spec->dims.begin());
            auto output = follower(left, *spec, axis, grown ? sums(past, seq) : std::vector<Axis>{seq});
            if (output) found.push_back({spec, *std::move(output), axis});
        }
        if (found.size() == inputs.size()) {
            roles.caches = std::move(found);
            roles.grown = grown;
            return;
        }
    }
    refuse("not every cache has an output with " + past + "+" + seq + " or " + seq + " in place of " + past);
}

void find_mask(const IO& io, const std::set<std::string>& names, const std::string& past, Roles& roles) {
    std::vector<const TensorSpec*> found;
    for (const TensorSpec& spec : io.inputs) {
        if (names.count(spec.name) != 0) found.push_back(&spec);
    }
    if (found.empty()) return;
    const Axis& batch = roles.ids->dims[0];
    const auto wholes = sums(past, std::get<std::string>(roles.ids->dims[1]));
    const Dims& dims = found[0]->dims;
    roles.whole = std::any_of(wholes.begin(), wholes.end(), [&](const Axis& sum) { return dims == Dims{batch, sum}; });
    const bool plain = std::all_of(io.masks.begin(), io.masks.end(), [](const Mask& mask) {
        return !mask.input || (mask.carries == "mask" && mask.polarity == "keep");
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
    if (found.size() != 1 || dim_of(io, found[0]->dims[0]) == nullptr || dim_of(io, found[0]->dims[1]) == nullptr) {
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
    refuse("no output scores the " + std::to_string(*roles.ids->high) + " ids");
}

/// The name of the caches' length, the one dim of inputs of floats that the ids do not have.
std::string past_of(const IO& io, const std::vector<const TensorSpec*>& floats, const Roles& roles) {
    std::set<std::string> found;
    for (const TensorSpec* const spec : floats) {
        for (const Axis& axis : spec->dims) {
            const bool own = axis != roles.ids->dims[0] && axis != roles.ids->dims[1];
            if (const Dim* const dim = dim_of(io, axis); dim != nullptr && own) found.insert(dim->name);
        }
    }
    if (found.size() != 1) refuse("it has no cache: no input of floats with a length of its own");
    return *found.begin();
}

void require_all(const IO& io, const Roles& roles) {
    std::set<std::string> taken{roles.ids->name};
    for (const Cached& cache : roles.caches) taken.insert(cache.spec->name);
    if (roles.mask != nullptr) taken.insert(roles.mask->name);
    std::vector<std::string> others;
    for (const TensorSpec& spec : io.inputs) {
        if (taken.count(spec.name) == 0) others.push_back(shown(spec.name));
    }
    if (!others.empty()) refuse("it also takes " + joined(others));
}

}  // namespace

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
    const std::string past = past_of(io, floats, roles);
    const Axis length(past);
    floats.erase(std::remove_if(floats.begin(), floats.end(), [&](const TensorSpec* spec) {
        return std::find(spec->dims.begin(), spec->dims.end(), length) == spec->dims.end();
    }), floats.end());
    pair_up(io, floats, past, std::get<std::string>(roles.ids->dims[1]), roles);
    find_logits(io, roles);
    find_mask(io, masks, past, roles);
    const Dim& places = *dim_of(io, length);
    roles.start = places.min;
    if (roles.start != 0 && roles.mask == nullptr) {
        refuse("its cache cannot be empty: " + past + " is from " + std::to_string(places.min) +
               ", and no mask hides a place");
    }
    require_all(io, roles);
    roles.longest_seq = dim_of(io, roles.ids->dims[1])->max;
    roles.longest_past = places.max;
    return roles;
}

}  // namespace attnport::reader
