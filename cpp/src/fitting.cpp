// What a model file takes and gives, as its runtime reads it, against what the manifest says of it.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <attnport/error.hpp>

#include "expression.hpp"
#include "opening.hpp"
#include "printable.hpp"
#include "words.hpp"

namespace attnport::reader {
namespace {

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

std::vector<Dim>::const_iterator dim_of(const std::vector<Dim>& dims, const std::string& called) {
    auto at = dims.begin();
    while (at != dims.end() && at->name != called) ++at;
    return at;
}

/// The size of an axis with all dims at their least or largest; -1 where an expression has no value there.
std::int64_t stated(const std::vector<Dim>& dims, const Axis& axis, std::int64_t Dim::*which) {
    if (const auto* fixed = std::get_if<std::int64_t>(&axis)) return *fixed;
    const auto size_of = [&](std::string_view name) -> std::optional<std::int64_t> {
        const auto dim = dim_of(dims, std::string(name));
        return dim == dims.end() ? std::nullopt : std::optional((*dim).*which);
    };
    const auto& text = std::get<std::string>(axis);
    const auto size = size_of(text);
    return size ? *size : value_of(text, size_of).value_or(-1);
}

std::pair<std::int64_t, std::int64_t> stated(const std::vector<Dim>& dims, const Axis& axis) {
    return {stated(dims, axis, &Dim::min), stated(dims, axis, &Dim::max)};
}

void check_port(const IO& io, const TensorSpec& spec, DType dtype, const Port& port, const std::string& where) {
    const auto refuse = [&](const std::string& got, std::string_view expected) {
        throw IntegrityError(where + ": tensor " + reader::quoted(spec.name) + " " + got + "; the manifest says " +
                             std::string(expected) + ".");
    };
    if (port.dtype != name(dtype)) refuse("is " + shown(port.dtype), name(dtype));
    if (!port.shape) return;
    if (port.shape->size() != spec.dims.size()) refuse("has rank " + std::to_string(port.shape->size()), spec.text());
    for (std::size_t axis = 0; axis < spec.dims.size(); ++axis) {
        const auto size = (*port.shape)[axis];
        const auto [least, largest] = stated(io.dims, spec.dims[axis]);
        // The largest size that a named dim takes cannot be read off a file: there the manifest has to be believed.
        if (size && (least != *size || largest != *size)) {
            refuse("has size " + std::to_string(*size) + " on axis " + std::to_string(axis), spec.text());
        }
    }
}

void check_side(const IO& io, const Form& form, const std::string& kind, const std::vector<TensorSpec>& specs,
                const std::vector<Port>& ports, const std::string& where) {
    std::map<std::string, const Port*> found;
    for (const auto& port : ports) found[port.name] = &port;
    std::set<std::string> names;
    std::vector<std::string> expected;
    for (const auto& spec : specs) {
        names.insert(spec.name);
        expected.push_back(spec.name);
    }
    std::vector<std::string> got;
    got.reserve(found.size());
    bool same = found.size() == ports.size() && found.size() == names.size();
    for (const auto& item : found) {
        if (!is_utf8(item.first)) {
            throw IntegrityError(where + ": the name of an input or output is no UTF-8.");
        }
        same = same && names.count(item.first) != 0;
        got.push_back(shown(item.first));
    }
    if (!same) {
        throw IntegrityError(where + " has the " + kind + " " + (got.empty() ? "none" : joined(got)) +
                             "; the manifest says " + joined(expected) + ".");
    }
    for (const auto& spec : specs) {
        check_port(io, spec, form.dtypes.at(spec.name), *found[spec.name], where);
    }
}

std::string words_of(const Ranges& ranges) {
    std::vector<std::string> parts;
    for (const auto& [least, largest] : ranges) {
        parts.push_back("(" + std::to_string(least) + ", " + std::to_string(largest) + ")");
    }
    return "[" + joined(parts) + "]";
}

void check_profile(const IO& io, const Profile& profile, const Session& session, std::size_t index,
                   const std::string& where) {
    const std::vector<Range>& got = session.profiles[index];
    for (const auto& spec : io.inputs) {
        Ranges wanted;
        for (const auto& axis : spec.dims) wanted.push_back(stated(profile.dims, axis));
        Range range;
        for (std::size_t port = 0; port < session.inputs.size() && port < got.size(); ++port) {
            if (session.inputs[port].name == spec.name) range = got[port];
        }
        Ranges found;
        for (std::size_t axis = 0; axis < range.least.size() && axis < range.largest.size(); ++axis) {
            found.emplace_back(range.least[axis], range.largest[axis]);
        }
        if (found == wanted && range.least.size() == range.largest.size()) continue;
        throw IntegrityError(where + ": profile " + std::to_string(index) + " takes " + reader::quoted(spec.name) +
                             " from " + listed(range.least) + " to " + listed(range.largest) + "; the manifest says " +
                             words_of(wanted) + ".");
    }
}

}  // namespace

void check_ports(const IO& io, const Form& form, const Session& session, const std::string& where) {
    check_side(io, form, "inputs", io.inputs, session.inputs, where);
    check_side(io, form, "outputs", io.outputs, session.outputs, where);
}

void check_profiles(const IO& io, const Form& form, const Session& session, const std::string& where) {
    if (session.profiles.size() != form.profiles.size()) {
        throw IntegrityError(where + " has " + std::to_string(session.profiles.size()) +
                             " optimization profiles; the manifest says " + std::to_string(form.profiles.size()) + ".");
    }
    for (std::size_t index = 0; index < form.profiles.size(); ++index) {
        check_profile(io, form.profiles[index], session, index, where);
    }
}

}  // namespace attnport::reader
