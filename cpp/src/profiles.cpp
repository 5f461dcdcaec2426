// Which optimization profile of an engine takes the shapes of a call.
#include "session.hpp"

#include <limits>
#include <string>

#include <attnport/error.hpp>

#include "words.hpp"

namespace attnport::reader {

namespace {

bool admits(const Range& range, const Shape& shape) {
    if (shape.size() != range.least.size() || shape.size() != range.largest.size()) return false;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
        if (shape[axis] < range.least[axis] || shape[axis] > range.largest[axis]) return false;
    }
    return true;
}

/// How many profiles do not admit an input's shape.
std::size_t missed(const std::vector<std::vector<Range>>& profiles, std::size_t input, const Shape& shape) {
    std::size_t count = 0;
    for (const auto& ranges : profiles) count += admits(ranges[input], shape) ? 0U : 1U;
    return count;
}

/// The sum of all largest sizes; in floating point, where it cannot overflow.
double end(const std::vector<Range>& ranges) {
    double sum = 0;
    for (const Range& range : ranges) {
        for (const std::int64_t size : range.largest) sum += static_cast<double>(size);
    }
    return sum;
}

}  // namespace

std::size_t choose_profile(const std::vector<std::vector<Range>>& profiles, const std::vector<Port>& inputs,
                           const std::vector<Shape>& shapes) {
    std::size_t best = profiles.size();
    double soonest = std::numeric_limits<double>::infinity();
    for (std::size_t index = 0; index < profiles.size(); ++index) {
        bool fits = true;
        for (std::size_t input = 0; fits && input < shapes.size(); ++input) {
            fits = admits(profiles[index][input], shapes[input]);
        }
        if (!fits || end(profiles[index]) >= soonest) continue;
        soonest = end(profiles[index]);
        best = index;
    }
    if (best < profiles.size()) return best;
    if (inputs.empty()) throw FeedError("the engine has no input, and no profile.");

    std::size_t worst = 0;
    for (std::size_t input = 1; input < shapes.size(); ++input) {
        if (missed(profiles, input, shapes[input]) > missed(profiles, worst, shapes[worst])) worst = input;
    }
    std::vector<std::string> spans;
    spans.reserve(profiles.size());
    for (const auto& ranges : profiles) {
        spans.push_back(listed(ranges[worst].least) + " to " + listed(ranges[worst].largest));
    }
    throw FeedError("input " + reader::quoted(inputs[worst].name) + ": got shape " + listed(shapes[worst]) +
                    "; the engine's profiles take " + (spans.empty() ? "nothing" : joined(spans, "; ")) +
                    ". Build an engine with a profile that covers it.");
}

}  // namespace attnport::reader
